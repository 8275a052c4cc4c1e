"""The topic `micro-batches` as the learner reads it: one run's micro-batches by number, each once."""

from __future__ import annotations

import logging
from datetime import datetime

import msgspec

from learner.topic import TopicReader
from schemas.messages import MICRO_BATCH_PUBLISHED, MicroBatchPublished

log = logging.getLogger(__name__)


class MicroBatchLog:
    """Gives the micro-batches of `run` in the order of their numbers, from `seq` on.

    The relay may send one twice, and a topic holds those of every run: repeats, older ones and other runs' are passed
    over, and one that comes before its turn waits.

    Args:
        reader: of the topic.
        run: name of the run.
        seq: number of the first that is wanted.
        since: no wanted record was written before this moment; None: read from the first record on.
    """

    def __init__(self, reader: TopicReader, run: str, seq: int, since: datetime | None) -> None:
        self._reader, self._run = reader, run
        self.seq = seq
        self._early: dict[int, MicroBatchPublished] = {}
        reader.seek_to(since)

    def poll(self, seconds: float) -> MicroBatchPublished | None:
        """The micro-batch number `seq`, waiting at most `seconds` for something to come; None where it has not come.
        The next call asks for the number after it."""
        if self.seq not in self._early:
            for kind, value in self._reader.poll(seconds):
                self._take(kind, value)
        found = self._early.pop(self.seq, None)
        if found is not None:
            self.seq += 1
        return found

    def read_again(self) -> None:
        """Start over at the first record: a wanted one was not where its time said."""
        self._reader.seek_to(None)

    def _take(self, kind: str | None, value: bytes) -> None:
        if kind != MICRO_BATCH_PUBLISHED:
            return
        try:
            message = msgspec.json.decode(value, type=MicroBatchPublished)
        except msgspec.DecodeError as err:
            log.warning("a record of the topic cannot be read and is passed over: %s", err)
            return
        if message.run == self._run and message.seq >= self.seq:
            self._early.setdefault(message.seq, message)
