"""The role `agents`: waits for the broker, runs the Faust app, and stops it without losing what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from processors.app import RecordingApp, make_app
from processors.config import RecorderConfig
from processors.health import Health
from processors.recorder import Recorder
from processors.retrying import until_done
from processors.services import Service

PART = "agents"

_log = logging.getLogger(__name__)

_POLL_S = 0.1
"""How often the app is asked whether it still runs; a fault is noticed this late."""
_STOP_S = 15.0
"""Faust leaves its group and closes its threads in a second or two. Beyond this it hangs on a broker that is away;
nothing is lost by not waiting, since only what is recorded is committed."""
_ASK_S = 10.0
"""The longest that asking the broker for its topics may take."""


class TopicMissing(RuntimeError):
    """The topic is not on the broker."""


def agents_service(bootstrap_servers: str, config: RecorderConfig, recorder: Recorder, health: Health) -> Service:
    """Records the log until stopped.

    Raises (the service): whatever made recording stop, such as `TooManyDeadLetters`; nothing after the last commit is
    acknowledged.
    """

    async def run(stop: asyncio.Event) -> None:
        ready = asyncio.ensure_future(_broker_ready(bootstrap_servers, config.topic, health))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ready.done():
            ready.cancel()
            return
        ready.result()
        app = make_app(
            bootstrap_servers=bootstrap_servers,
            group_id=config.group_id,
            data_dir=config.data_dir,
            recorder=recorder,
            batch_events=config.batch_events,
            topic=config.topic,
        )
        try:
            await app.start()
            health.ok(PART)
            await _watch(app, stop)
        finally:
            await _stop(app)

    return run


async def _watch(app: RecordingApp, stop: asyncio.Event) -> None:
    while not stop.is_set():
        if app.fault is not None:
            raise app.fault
        if app.should_stop:
            raise RuntimeError("the Faust app crashed; its log above says why")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _POLL_S)


async def _stop(app: RecordingApp) -> None:
    try:
        await asyncio.wait_for(app.stop(), _STOP_S)
    except TimeoutError:
        _log.warning("Faust did not stop within %.0f s; what it had not committed is read again", _STOP_S)


async def _broker_ready(bootstrap_servers: str, topic: str, health: Health) -> None:
    """Return once the broker answers and has the topic: Faust itself gives up where the broker is away at the start."""

    async def ask() -> None:
        client = AIOKafkaClient(bootstrap_servers=bootstrap_servers.split(","))
        try:
            await asyncio.wait_for(client.bootstrap(), _ASK_S)
            metadata = await asyncio.wait_for(client.fetch_all_metadata(), _ASK_S)
            if topic not in metadata.topics():
                raise TopicMissing(f"topic {topic} is not on {bootstrap_servers}; run `hindstream topics create`")
        finally:
            await client.close()

    def transient(err: BaseException) -> bool:
        return isinstance(err, (KafkaError, TopicMissing, OSError, TimeoutError))

    await until_done(ask, transient=transient, health=health, part=PART)
