"""How far each partition is recorded, and the promise that no offset beyond it is ever committed to the broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Place = tuple[str, int]
"""Topic and partition. A `TP` of Faust is one."""


class OffsetGap(RuntimeError):
    """Records were passed over between two that were delivered; the worker must start again from what is committed."""


class Watermarks:
    """The next offset to record of each partition, within one generation of the consumer group.

    Faust keeps acknowledgements of its own, and they can run ahead: it acknowledges what it skips while partitions
    are being reassigned, and a gap that it does not know of is taken as read. So its commits are cut back to what is
    in Postgres (`clamp`), and an offset that never came is an error, not silence (`advance`).
    """

    def __init__(self) -> None:
        self._generation: int | None = None
        self._next: dict[Place, int] = {}

    def advance(self, generation: int, current_generation: int, offsets: Iterable[tuple[str, int, int]]) -> None:
        """`offsets` (topic, partition, offset), in order, are committed to Postgres.

        Records of an older generation are recorded all the same, but whoever has their partitions now reads them
        again, so they move nothing.

        Raises:
            OffsetGap: an offset of a partition was left out.
        """
        if generation != current_generation:
            return
        if generation != self._generation:
            self._generation, self._next = generation, {}
        for topic, partition, offset in offsets:
            expected = self._next.get((topic, partition), offset)
            if offset > expected:
                raise OffsetGap(
                    f"{topic}/{partition}: offsets {expected} to {offset - 1} were never delivered; they are not "
                    "committed, so a restart reads them again"
                )
            self._next[topic, partition] = max(expected, offset + 1)

    def clamp(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """`offsets` to commit, each cut back to what is recorded; partitions with nothing recorded are left out."""
        return {
            place: min(offset, self._next[place[0], place[1]])
            for place, offset in offsets.items()
            if (place[0], place[1]) in self._next
        }
