"""The Faust app: one agent that hands batches of `agent-events` to the recorder and acknowledges what is committed.

This is the only module that knows Faust. What Faust 0.15.3 does with acknowledgements, and what is done about it:

- Leaving the body of `async for` by an exception or a cancel acknowledges the batch all the same. So batches come
  from `noack_take` and are acknowledged one by one after their transaction; and the body never ends with unfinished
  work: after a fault that waiting does not mend it stands still, and the worker is stopped from outside.
- A stopped or restarted agent goes on with the next record. So nothing here may restart: one fault, one exit.
- What is skipped while partitions are reassigned counts as acknowledged. So commits are cut back to `Watermarks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import faust
from faust.transport.drivers import aiokafka as driver

from processors.dead_letters import Delivery
from processors.recorder import Recorder
from processors.watermarks import Watermarks

_log = logging.getLogger(__name__)

_SESSION_TIMEOUT_S = 10.0
"""A worker that was killed keeps its partitions for this long, and their events wait. Shorter, and a pause of the
machine (a busy neighbour, a snapshot) throws a living worker out, which costs all workers a rebalance."""
_HEARTBEAT_S = 3.0
"""Three chances to be heard within the session timeout."""
_REBALANCE_TIMEOUT_S = 60.0
"""How long the group waits for a member to give up its partitions; a batch takes milliseconds, but a member on a
paused machine must not be left behind at once."""
_REQUEST_TIMEOUT_S = 70.0
"""Longer than the rebalance timeout: joining the group is one request that the broker answers when all have joined."""
_MAX_POLL_INTERVAL_S = 12 * 3600.0
"""While the database is away nothing is polled. Beyond this the broker would give the partitions to another worker,
which has the same database: a rebalance for nothing. Half a day of outage is for people to look at anyway."""
_COMMIT_INTERVAL_S = 1.0
"""After a crash the events of this long are read again; each is a row that is there already, so little is lost. More
often would cost a request each."""
_WITHIN_S = 0.05
"""How long a batch that is not full waits for more, so what a single event waits at most. Less, and an idle worker
spends its time waking up."""
_FETCH_BYTES = 4 << 20
"""What is fetched ahead a partition: four events of the largest size, thousands of ordinary ones."""


class _Consumer(driver.Consumer):
    """Faust's consumer, which commits nothing that is not recorded."""

    async def _commit_offsets(self, offsets: Mapping[Any, int], start_new_transaction: bool = True) -> bool:
        app = cast(RecordingApp, self.app)
        safe: Any = app.watermarks.clamp(offsets)
        return bool(await super()._commit_offsets(safe, start_new_transaction)) if safe else False


class _Transport(driver.Transport):
    Consumer = _Consumer


class RecordingApp(faust.App):
    """A Faust app whose agent records. `fault` is set when it stands still and the worker must be stopped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.watermarks = Watermarks()
        self.fault: BaseException | None = None
        super().__init__(*args, **kwargs)

    def _new_transport(self) -> Any:
        return _Transport(self.conf.broker_consumer, self)


def make_app(
    *,
    bootstrap_servers: str,
    group_id: str,
    data_dir: Path,
    recorder: Recorder,
    batch_events: int,
    topic: str,
) -> RecordingApp:
    """The app, not started. Must be called in the event loop that runs it.

    `group_id` names the consumer group: workers with the same share the partitions of `topic`. `batch_events` is the
    most that one transaction records. `data_dir` is where Faust puts the directories that it insists on.
    """
    app = RecordingApp(
        group_id,
        broker=[f"kafka://{server}" for server in bootstrap_servers.split(",")],
        datadir=data_dir,
        store="memory://",
        autodiscover=False,
        processing_guarantee="at_least_once",
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=_FETCH_BYTES,
        broker_commit_interval=_COMMIT_INTERVAL_S,
        broker_session_timeout=_SESSION_TIMEOUT_S,
        broker_heartbeat_interval=_HEARTBEAT_S,
        broker_rebalance_timeout=_REBALANCE_TIMEOUT_S,
        broker_request_timeout=_REQUEST_TIMEOUT_S,
        broker_max_poll_interval=_MAX_POLL_INTERVAL_S,
        stream_buffer_maxsize=2 * batch_events,
        # A rebalance does not wait for a batch that waits for the database: what it held is read again, to no effect.
        stream_wait_empty=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        reply_create_topic=False,
        web_enabled=False,
    )
    events = app.topic(topic, key_serializer="raw", value_serializer="raw", key_type=bytes, value_type=bytes)

    async def record_events(stream: Any) -> None:
        try:
            await _consume(app, stream, stream.noack_take(batch_events, within=_WITHIN_S), recorder)
        except asyncio.CancelledError:
            if app.should_stop:
                raise
            app.fault = RuntimeError("Faust cancelled the agent while it was working")
        except Exception as err:
            app.fault = err
            _log.exception("recording stopped")
        await asyncio.Event().wait()  # not to return: that would count as done, and the agent would start again

    app.agent(events, concurrency=1, name="record")(record_events)
    return app


async def _consume(app: RecordingApp, stream: Any, batches: AsyncIterable[Sequence[Any]], recorder: Recorder) -> None:
    async for batch in batches:
        deliveries = [_delivery(event.message) for event in batch]
        await recorder.record(deliveries)
        for event, delivery in zip(batch, deliveries, strict=True):
            place = (delivery.topic, delivery.partition, delivery.offset)
            app.watermarks.advance(event.message.generation_id, app.consumer_generation_id, [place])
        for event in batch:
            await stream.ack(event)


def _delivery(message: Any) -> Delivery:
    return Delivery(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        # A header may be null; to Hindstream it is empty.
        headers=[(name, value or b"") for name, value in message.headers or ()],
        value=message.value,
    )
