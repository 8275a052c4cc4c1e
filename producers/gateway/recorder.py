"""Putting events on the log, or on the disk while the broker is away: "recorded" means acknowledged.

Two tasks of the gateway's event loop. The writer takes whatever waits as one batch: many requests share one
acknowledgement or one sync. The sender empties the spool in order when the broker is back. While anything is in the
spool, new events go behind it; so nothing waits for a broker that is known to be away. The disk, redaction and values
over 1 MiB are left to threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Sequence
from typing import Literal

from producers.gateway.config import GatewayConfig
from producers.gateway.log_publisher import LogPublisher, Sent
from producers.gateway.redaction.redactor import RedactionFailed, Redactor
from producers.gateway.redaction.rules import Rules
from producers.gateway.spool import Spool, SpoolFull
from schemas.claim_check import DirectoryBlobStore
from schemas.envelope import Event, WireRecord, encode
from schemas.events import TurnRecorded

log = logging.getLogger(__name__)

Recorded = Literal["true", "spooled", "false", "off"]
"""What a caller hears: on the log; on the gateway's disk; nowhere, because disk or spool is full; nowhere, as asked."""

_BATCH = 256
"""Submissions that share one acknowledgement; at 10 kB a turn this is 2.5 MB in flight."""

_SEND_RECORDS = 500
"""Records of the spool that are sent with one wait, so that a stop need not wait for a whole segment."""

_Encoded = tuple[list[WireRecord], "asyncio.Future[Recorded]"]
_Item = tuple[Sequence[Event], "asyncio.Future[Recorded]"]


class Recorder:
    """Records events in the order in which they are submitted. `start` before use, `stop` after, all in one event loop.

    Raises:
        SpoolInUse: another gateway has the spool directory.
        BadRule: a redaction rule is none.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        wanted = config.redaction
        self._redactor = Redactor(Rules(wanted)) if wanted.rules or wanted.detectors else None
        self._blobs = DirectoryBlobStore(config.blob_dir)
        self._spool = Spool(config.spool_dir, config.spool_max_bytes)
        self._queue: asyncio.Queue[_Item | None] = asyncio.Queue()
        self._publisher = LogPublisher(config.bootstrap_servers, config.publish_timeout_s)
        self._stopping = asyncio.Event()
        self._wake_sender = asyncio.Event()
        self._away = False
        self.losing = False  # whether the last turn went nowhere: the broker is away, and disk or spool is full
        self.counts: dict[Recorded, int] = {"true": 0, "spooled": 0, "false": 0, "off": 0}
        self.redaction_failures = 0
        self.refused_records = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start both tasks; what an earlier process left in the spool is sent first."""
        if not self._spool.empty:
            log.warning("%d bytes wait in the spool from an earlier run; they are sent first", self._spool.bytes)
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._send())]

    def submit(self, events: Sequence[Event]) -> asyncio.Future[Recorded]:
        """Record `events`, all or none. Returns at once; the future never fails and tells where they are."""
        future: asyncio.Future[Recorded] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((events, future))
        return future

    def skip(self) -> asyncio.Future[Recorded]:
        """Count a request that is not to be recorded."""
        future: asyncio.Future[Recorded] = asyncio.get_running_loop().create_future()
        self._settle(future, "off")
        return future

    async def stop(self) -> None:
        """Record what was submitted, then end. Takes at most a few of the publisher's timeouts."""
        self._queue.put_nowait(None)
        writer, sender = self._tasks
        await writer
        self._stopping.set()
        self._wake_sender.set()
        await sender
        await self._publisher.close()
        self._spool.close()

    @property
    def broker_away(self) -> bool:
        """Whether the broker did not acknowledge the last time it was tried."""
        return self._away

    @property
    def alive(self) -> bool:
        """Whether both tasks run: without them nothing is recorded."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    @property
    def spool_bytes(self) -> int:
        """Bytes that wait on disk."""
        return self._spool.bytes

    async def _write(self) -> None:
        while (item := await self._queue.get()) is not None:
            items, last = [item], False
            while len(items) < _BATCH:
                try:
                    more = self._queue.get_nowait()
                except asyncio.QueueEmpty:
                    break
                if more is None:
                    last = True
                    break
                items.append(more)
            try:
                await self._record(items)
            except Exception as err:  # a fault of ours must not leave callers waiting, nor end the task
                log.error("recording failed; %d turns may not be recorded: %s", len(items), where(err))  # noqa: TRY400
                for _, future in items:
                    if not future.done():
                        self._settle(future, "false")
            if last:
                return

    async def _record(self, items: list[_Item]) -> None:
        encoded: list[_Encoded] = []
        for events, future in items:
            try:
                encoded.append((await self._encoded(events), future))
            except RedactionFailed as err:
                self.redaction_failures += 1
                log.error("turn %s is not recorded: %s", _name(events), err)  # noqa: TRY400 - a traceback would not say more
                self._settle(future, "false")
            except Exception as err:  # a full disk for a claim check, or no JSON: this one, not its neighbours
                log.error(  # noqa: TRY400
                    "turn %s could not be encoded; it is not recorded: %s", _name(events), where(err)
                )
                self._settle(future, "false")
        if encoded:
            await self._put(encoded)

    async def _encoded(self, events: Sequence[Event]) -> list[WireRecord]:
        """As they go on the log. At once where that takes no time: a thread would cost more than the work."""
        if self._redactor is None:
            with contextlib.suppress(ValueError):  # over 1 MiB: it goes by the disk
                return [encode(event) for event in events]
        return await asyncio.to_thread(self._redacted, events)

    def _redacted(self, events: Sequence[Event]) -> list[WireRecord]:
        clean = self._redactor.events(events) if self._redactor is not None else events
        return [encode(event, self._blobs) for event in clean]

    async def _put(self, items: list[_Encoded]) -> None:
        """On the log, else in the spool."""
        if self._spool.empty and not self._away:
            sent = await self._publish([record for records, _ in items for record in records])
            if sent == "acknowledged":
                for _, future in items:
                    self._settle(future, "true")
                return
            if sent == "refused" and len(items) > 1:
                for item in items:
                    await self._put([item])
                return
            if sent == "refused":
                ((records, future),) = items
                await self._set_aside(records)
                self._settle(future, "false")
                return
        for records, future in items:
            self._settle(future, await self._keep(records))
        self._wake_sender.set()

    async def _keep(self, records: list[WireRecord]) -> Recorded:
        try:
            await asyncio.to_thread(self._spool.append, records)
        except (SpoolFull, OSError) as err:
            log.error("a turn is not recorded: the broker is away and %s", err)  # noqa: TRY400 - no traceback each
            self.losing = True
            return "false"
        self.losing = False
        return "spooled"

    def _settle(self, future: asyncio.Future[Recorded], outcome: Recorded) -> None:
        self.counts[outcome] += 1
        if not future.done():
            future.set_result(outcome)

    async def _send(self) -> None:
        """Until stopped: send the spool, wait, try again."""
        while not self._stopping.is_set():
            try:
                done = await self._send_spool()
            except Exception as err:  # the disk, most likely: what waits is tried again
                log.error("the spool could not be sent: %s", where(err))  # noqa: TRY400
                done = False
            if done:
                await self._wake_sender.wait()
                self._wake_sender.clear()
            else:
                await self._pause()

    async def _pause(self) -> None:
        """Until the broker is to be tried again, or the recorder stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.retry_s):
                await self._stopping.wait()

    async def _send_spool(self) -> bool:
        """Whether the spool is empty now and the broker is thought to be there."""
        while (segment := await asyncio.to_thread(self._spool.oldest)) is not None:
            path, records = segment
            if records is None:
                log.error("spool segment %s is damaged; it is set aside, and the rest is sent", path)
                await asyncio.to_thread(self._spool.set_aside, path)
                continue
            for start in range(0, len(records), _SEND_RECORDS):
                if self._stopping.is_set() or not await self._send_records(records[start : start + _SEND_RECORDS]):
                    return False
            await asyncio.to_thread(self._spool.remove, path)
            log.info("%d spooled records are on the log", len(records))
        if self._away:
            # The spool could not be written, so nothing tests the broker but the next turn: let one try.
            await self._pause()
            self._away = False
        return True

    async def _send_records(self, records: list[WireRecord]) -> bool:
        """Whether each is on the log, or set aside because the broker will never take it."""
        sent = await self._publish(records)
        if sent == "refused" and len(records) > 1:
            for record in records:
                if not await self._send_records([record]):
                    return False
            return True
        if sent == "refused":
            await self._set_aside(records)
        return sent != "away"

    async def _set_aside(self, records: list[WireRecord]) -> None:
        for record in records:
            self.refused_records += 1
            await asyncio.to_thread(self._spool.keep_refused, record)
            name = dict(record.headers).get("ce_id", b"").decode("utf-8", "replace")
            log.error("event %s (%d bytes) is refused by the broker; it is set aside", name, len(record.value))

    async def _publish(self, records: list[WireRecord]) -> Sent:
        """What the broker said of `records` as a whole."""
        sent, why = await self._publisher.publish(records)
        if sent == "refused":
            log.warning("the broker refused records: %s", why)
        elif sent == "away":
            if not self._away:
                log.warning("the broker is away, turns go to the spool: %s", why)
            self._away = True
        else:
            if self._away:
                log.warning("the broker is back")
            self._away = self.losing = False
        return sent


def _name(events: Sequence[Event]) -> str:
    return next((event.data.turn_id for event in events if isinstance(event.data, TurnRecorded)), events[0].id)


def where(err: BaseException) -> str:
    """The class of a fault and where it happened, without its words: they may be a caller's."""
    return f"{type(err).__name__}\n{''.join(traceback.format_tb(err.__traceback__))}"
