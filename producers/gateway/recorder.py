"""Putting events on the log, or on the disk while the broker is away: "recorded" means acknowledged.

Two threads, since kafka-python blocks. The writer takes whatever waits as one batch: many requests share one
acknowledgement or one sync. The sender empties the spool in order when the broker is back. While anything is in the
spool, new events go behind it; so nothing waits for a broker that is known to be away.
"""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Literal

from kafka.errors import InvalidRecordError, MessageSizeTooLargeError, RecordListTooLargeError

from producers.gateway.config import GatewayConfig
from producers.gateway.redaction.redactor import RedactionFailed, Redactor
from producers.gateway.redaction.rules import Rules
from producers.gateway.spool import Spool, SpoolFull
from schemas.claim_check import DirectoryBlobStore
from schemas.envelope import Event, WireRecord, encode
from schemas.events import TurnRecorded
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS

log = logging.getLogger(__name__)

Recorded = Literal["true", "spooled", "false", "off"]
"""What a caller hears: on the log; on the gateway's disk; nowhere, because disk or spool is full; nowhere, as asked."""

_BATCH = 256
"""Submissions that share one acknowledgement; at 10 kB a turn this is 2.5 MB in flight."""

_SEND_RECORDS = 500
"""Records of the spool that are sent with one wait, so that a stop need not wait for a whole segment."""

_REFUSALS = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidRecordError)
"""What a broker that is there says of a record that it will never take, however often it is sent."""

_Sent = Literal["acknowledged", "away", "refused"]

_Encoded = tuple[list[WireRecord], "Future[Recorded]"]
_Item = tuple[Sequence[Event], "Future[Recorded]"]


class Recorder:
    """Records events in the order in which they are submitted. `start` before use, `stop` after.

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
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._publisher: AckedPublisher | None = None
        self._publisher_lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake_sender = threading.Event()
        self._away = False
        self.losing = False  # whether the last turn went nowhere: the broker is away, and disk or spool is full
        self.counts: dict[Recorded, int] = {"true": 0, "spooled": 0, "false": 0, "off": 0}
        self.redaction_failures = 0
        self.refused_records = 0
        self._writer = threading.Thread(target=self._write, name="recorder-writer", daemon=True)
        self._sender = threading.Thread(target=self._send, name="recorder-sender", daemon=True)

    def start(self) -> None:
        """Start both threads; what an earlier process left in the spool is sent first."""
        if not self._spool.empty:
            log.warning("%d bytes wait in the spool from an earlier run; they are sent first", self._spool.bytes)
        self._writer.start()
        self._sender.start()

    def submit(self, events: Sequence[Event]) -> Future[Recorded]:
        """Record `events`, all or none. Returns at once; the future never fails and tells where they are."""
        future: Future[Recorded] = Future()
        self._queue.put((events, future))
        return future

    def skip(self) -> Future[Recorded]:
        """Count a request that is not to be recorded."""
        future: Future[Recorded] = Future()
        self._settle(future, "off")
        return future

    def stop(self) -> None:
        """Record what was submitted, then end. Blocks for at most a few of the publisher's timeouts."""
        self._queue.put(None)
        self._writer.join()
        self._stopping.set()
        self._wake_sender.set()
        self._sender.join()
        if self._publisher is not None:
            self._publisher.close()
        self._spool.close()

    @property
    def broker_away(self) -> bool:
        """Whether the broker did not acknowledge the last time it was tried."""
        return self._away

    @property
    def alive(self) -> bool:
        """Whether both threads run: without them nothing is recorded."""
        return self._writer.is_alive() and self._sender.is_alive()

    @property
    def spool_bytes(self) -> int:
        """Bytes that wait on disk."""
        return self._spool.bytes

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            items, last = [item], False
            while len(items) < _BATCH:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                items.append(more)
            try:
                self._record(items)
            except Exception as err:  # a fault of ours must not leave callers waiting, nor end the thread
                log.error("recording failed; %d turns may not be recorded: %s", len(items), where(err))  # noqa: TRY400
                for _, future in items:
                    if not future.done():
                        self._settle(future, "false")
            if last:
                return

    def _record(self, items: list[_Item]) -> None:
        encoded: list[_Encoded] = []
        for events, future in items:
            name = next((event.data.turn_id for event in events if isinstance(event.data, TurnRecorded)), events[0].id)
            try:
                clean = self._redactor.events(events) if self._redactor is not None else events
                encoded.append(([encode(event, self._blobs) for event in clean], future))
            except RedactionFailed as err:
                self.redaction_failures += 1
                log.error("turn %s is not recorded: %s", name, err)  # noqa: TRY400 - a traceback would not say more
                self._settle(future, "false")
            except Exception as err:  # a full disk for a claim check, or no JSON: this one, not its neighbours
                log.error("turn %s could not be encoded; it is not recorded: %s", name, where(err))  # noqa: TRY400
                self._settle(future, "false")
        if encoded:
            self._put(encoded)

    def _put(self, items: list[_Encoded]) -> None:
        """On the log, else in the spool."""
        if self._spool.empty and not self._away:
            sent = self._publish([record for records, _ in items for record in records])
            if sent == "acknowledged":
                for _, future in items:
                    self._settle(future, "true")
                return
            if sent == "refused" and len(items) > 1:
                for item in items:
                    self._put([item])
                return
            if sent == "refused":
                ((records, future),) = items
                self._set_aside(records)
                self._settle(future, "false")
                return
        for records, future in items:
            self._settle(future, self._keep(records))
        self._wake_sender.set()

    def _keep(self, records: list[WireRecord]) -> Recorded:
        try:
            self._spool.append(records)
        except (SpoolFull, OSError) as err:
            log.error("a turn is not recorded: the broker is away and %s", err)  # noqa: TRY400 - no traceback each
            self.losing = True
            return "false"
        self.losing = False
        return "spooled"

    def _settle(self, future: Future[Recorded], outcome: Recorded) -> None:
        self.counts[outcome] += 1
        if future.set_running_or_notify_cancel():
            future.set_result(outcome)

    def _send(self) -> None:
        """Until stopped: send the spool, wait, try again."""
        while not self._stopping.is_set():
            try:
                done = self._send_spool()
            except Exception as err:  # the disk, most likely: what waits is tried again
                log.error("the spool could not be sent: %s", where(err))  # noqa: TRY400
                done = False
            if done:
                self._wake_sender.wait()
                self._wake_sender.clear()
            else:
                self._stopping.wait(self._config.retry_s)

    def _send_spool(self) -> bool:
        """Whether the spool is empty now and the broker is thought to be there."""
        while (segment := self._spool.oldest()) is not None:
            path, records = segment
            if records is None:
                log.error("spool segment %s is damaged; it is set aside, and the rest is sent", path)
                self._spool.set_aside(path)
                continue
            for start in range(0, len(records), _SEND_RECORDS):
                if self._stopping.is_set() or not self._send_records(records[start : start + _SEND_RECORDS]):
                    return False
            self._spool.remove(path)
            log.info("%d spooled records are on the log", len(records))
        if self._away:
            # The spool could not be written, so nothing tests the broker but the next turn: let one try.
            self._stopping.wait(self._config.retry_s)
            self._away = False
        return True

    def _send_records(self, records: list[WireRecord]) -> bool:
        """Whether each is on the log, or set aside because the broker will never take it."""
        sent = self._publish(records)
        if sent == "refused" and len(records) > 1:
            return all(self._send_records([record]) for record in records)
        if sent == "refused":
            self._set_aside(records)
        return sent != "away"

    def _set_aside(self, records: list[WireRecord]) -> None:
        for record in records:
            self.refused_records += 1
            self._spool.keep_refused(record)
            name = dict(record.headers).get("ce_id", b"").decode("utf-8", "replace")
            log.error("event %s (%d bytes) is refused by the broker; it is set aside", name, len(record.value))

    def _publish(self, records: list[WireRecord]) -> _Sent:
        """What the broker said of `records` as a whole."""
        try:
            with self._publisher_lock:
                if self._publisher is None:
                    self._publisher = AckedPublisher(
                        self._config.bootstrap_servers,
                        client_id="hindstream-gateway",
                        timeout_s=self._config.publish_timeout_s,
                    )
            self._publisher.publish(AGENT_EVENTS, records)
        except Exception as err:  # whatever it is, an address that is none too: the records are not on the log
            if isinstance(err.__cause__, _REFUSALS):
                log.warning("the broker refused records: %s", err)
                return "refused"
            if not self._away:
                log.warning("the broker is away, turns go to the spool: %s", err)
            self._away = True
            return "away"
        if self._away:
            log.warning("the broker is back")
        self._away = self.losing = False
        return "acknowledged"


def where(err: BaseException) -> str:
    """The class of a fault and where it happened, without its words: they may be a caller's."""
    return f"{type(err).__name__}\n{''.join(traceback.format_tb(err.__traceback__))}"
