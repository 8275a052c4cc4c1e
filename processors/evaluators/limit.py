"""How many requests one model server is sent at once: as many as it takes, found out as TCP finds its window.

A refusal (429, 503) or a time-out says that the server has more than it can do. Then the limit is halved, once for all
requests that were under way together; each answer adds the limit's reciprocal, so one more after a whole round. Many
processes that ask one server share it so without knowing of each other. A server that says when to come back is left
alone until then; one that only refuses, for a wait that doubles with each refusal in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

_FIRST_PAUSE_S = 0.5
"""After a refusal without a time: a server that has a queue of its own is through with it in seconds."""
_LONGEST_PAUSE_S = 60.0
"""Grown pauses stop here: a server that is free again stands idle for so long at worst."""
_HELD_S = 5.0
"""Who waits for a slot sits out a pause up to this; a longer one sends it away, so that its work is not held back
from others who may have another server."""
_LONGEST_TOLD_S = 3600.0
"""A server that asks for more is asked after this all the same: its clock or its words may be wrong, and a quota that
is full for a day costs one refused request an hour."""


class Paused(Exception):
    """No request may go for `pause_s` seconds."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(f"for {pause_s:.0f} s more, as the server asked")
        self.pause_s = pause_s


@dataclass(frozen=True, kw_only=True)
class LimitFigures:
    """How a limit stands. `at_once`: what is sent now, of `most`; `refused`, `timed_out`: since the start;
    `pause_s`: until the next request may go."""

    at_once: int
    most: int
    in_flight: int
    waiting: int
    refused: int
    timed_out: int
    pause_s: float

    def in_words(self) -> str:
        """For a health line, for example "4 of 8 at once, 3 refused, 0 timed out, pause 12 s"."""
        pause = f", pause {self.pause_s:.0f} s" if self.pause_s >= 1 else ""
        return f"{self.at_once} of {self.most} at once, {self.refused} refused, {self.timed_out} timed out{pause}"


class AdaptiveLimit:
    """The limit of one server, for all clients of one event loop that ask it.

    Args:
        most: the limit that is never passed, and that it begins with.
        clock: seconds, ever growing.
        changed: called after the limit was cut, with why, and when it is `most` again, with None.
        chance: scatters pauses, so that processes which were refused together do not come back together.
    """

    def __init__(
        self,
        most: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[str | None, LimitFigures], None] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.most = most
        self._limit = float(most)
        self._clock, self._changed, self._chance = clock, changed, chance or random.Random()
        self._in_flight = self._refused = self._timed_out = 0
        self._cut_at = float("-inf")
        self._not_before = float("-inf")
        self._in_a_row = 0
        self._told = False
        self._line: deque[asyncio.Future[None]] = deque()

    def allow(self, most: int) -> None:
        """Another client may send `most` at once to the same server: the larger one counts for both."""
        if most > self.most:
            self._limit = self._limit + most - self.most
            self.most = most

    @property
    def at_once(self) -> int:
        """Requests that may be under way together now, at least 1."""
        return int(self._limit)

    @property
    def closed(self) -> bool:
        """Whether `slot` would send the caller away."""
        return self.pause_s > _HELD_S

    @property
    def pause_s(self) -> float:
        """How long no request may go; 0 where one may."""
        return max(0.0, self._not_before - self._clock())

    def figures(self) -> LimitFigures:
        """How it stands."""
        return LimitFigures(
            at_once=self.at_once,
            most=self.most,
            in_flight=self._in_flight,
            waiting=len(self._line),
            refused=self._refused,
            timed_out=self._timed_out,
            pause_s=self.pause_s,
        )

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Wait until a request may go, first come first served; yields when it began, by the limit's clock. The caller
        then says what came of it: `answered`, `refused` or `timed_out`; nothing where the server was not reached.

        Raises:
            Paused: no request may go for long.
        """
        await self._take()
        try:
            while (pause_s := self.pause_s) > 0:
                if pause_s > _HELD_S:
                    raise Paused(pause_s)
                await asyncio.sleep(pause_s)
            yield self._clock()
        finally:
            self._in_flight -= 1
            self._hand_out()

    def answered(self, began: float) -> None:
        """The server answered, well or badly, a request that `began` then."""
        if began < self._cut_at:  # it says how the server was before it was too much
            return
        self._in_a_row = 0
        if self._limit < self.most:
            self._limit = min(float(self.most), self._limit + 1.0 / self._limit)
            self._hand_out()
            if self._limit == self.most:
                self._tell(None)

    def refused(self, began: float, why: str, retry_after_s: float | None) -> None:
        """The server had no room for a request that `began` then; it may have said after how long to come back."""
        self._refused += 1
        first = self._cut(began)
        if retry_after_s is not None:
            self._wait(min(retry_after_s, _LONGEST_TOLD_S))
        elif first:
            self._in_a_row += 1
            grown = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (self._in_a_row - 1))
            self._wait(grown * self._chance.uniform(0.5, 1.0))
        if first:
            self._tell(why)

    def timed_out(self, began: float, why: str) -> None:
        """The server gave no answer in time to a request that `began` then."""
        self._timed_out += 1
        if self._cut(began):
            self._tell(why)

    def _cut(self, began: float) -> bool:
        """Halve, unless that was done since `began`: all that was under way then has led to one cut."""
        if began < self._cut_at:
            return False
        self._cut_at = self._clock()
        self._limit = max(1.0, self._limit / 2)
        return True

    def _wait(self, seconds: float) -> None:
        self._not_before = max(self._not_before, self._clock() + seconds)

    def _tell(self, why: str | None) -> None:
        if self._changed is not None and (why is not None or self._told):
            self._told = why is not None
            self._changed(why, self.figures())

    async def _take(self) -> None:
        if not self._line and self._in_flight < self.at_once:
            self._in_flight += 1
            return
        mine = asyncio.get_running_loop().create_future()
        self._line.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # it was handed out in the same moment: to the next
                self._in_flight -= 1
                self._hand_out()
            else:
                with contextlib.suppress(ValueError):  # handing out has passed over it already
                    self._line.remove(mine)
            raise

    def _hand_out(self) -> None:
        while self._line and self._in_flight < self.at_once:
            first = self._line.popleft()
            if not first.done():
                self._in_flight += 1
                first.set_result(None)
