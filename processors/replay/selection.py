"""What a replay is asked to take of a log: which part of it, which sessions, and which share of them."""

from __future__ import annotations

import hashlib

import msgspec

_HASH_BITS = 64


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`since`, `until`: ISO 8601, by the log's clock; `offsets`: for each partition by its number the first offset and
    the one after the last, other partitions are left out. None: all that is there when the replay begins.

    `sessions`: only these; None: all. `sample`: the share of sessions to take, in (0, 1]; the same `seed` takes the
    same ones, and a larger share takes those of a smaller one and more. Whole sessions are taken or left, since a turn
    without its next state says nothing."""

    since: str | None = None
    until: str | None = None
    offsets: dict[str, tuple[int, int]] | None = None
    sessions: list[str] | None = None
    sample: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Refuse what selects nothing.

        Raises:
            ValueError: with the field and what it should be.
        """
        if not 0 < self.sample <= 1:
            raise ValueError(f"sample is {self.sample}; it is a share of the sessions, above 0 and at most 1")
        if self.sessions is not None and not self.sessions:
            raise ValueError("sessions is empty: leave it out to take all")

    def takes(self, session_id: str) -> bool:
        """Whether the session is in."""
        if self.sessions is not None and session_id not in self.sessions:
            return False
        return self.sample >= 1 or _place(self.seed, session_id) < self.sample


def _place(seed: int, session_id: str) -> float:
    """A number in [0, 1) that looks random and is always the same for (seed, session)."""
    digest = hashlib.sha256(f"{seed}/{session_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[: _HASH_BITS // 8], "big") / 2.0**_HASH_BITS
