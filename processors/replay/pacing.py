"""Reading a log at the pace at which it was recorded, or some times faster."""

from __future__ import annotations

import threading
import time


class Pace:
    """Maps the log's clock to ours from the first record on.

    Args:
        speed: log seconds that pass in one of ours; None: records never wait.
        halt: ends a wait.

    Raises:
        ValueError: `speed` is not positive.
    """

    def __init__(self, speed: float | None, halt: threading.Event) -> None:
        if speed is not None and speed <= 0:
            raise ValueError(f"speed is {speed}; it must be above 0")
        self._speed, self._halt = speed, halt
        self._first: tuple[float, float] | None = None

    def reached(self, seconds: float) -> bool:
        """Whether a record of this time, in seconds by the log's clock, is due."""
        return self._ahead(seconds) <= 0

    def wait(self, seconds: float) -> None:
        """Wait until it is."""
        self._halt.wait(max(0.0, self._ahead(seconds)))

    def _ahead(self, seconds: float) -> float:
        if self._speed is None:
            return 0.0
        if self._first is None:
            self._first = (seconds, time.monotonic())
        log_first, our_first = self._first
        return (seconds - log_first) / self._speed - (time.monotonic() - our_first)
