"""Watchers off the learner's path: one that fails, or hangs, costs its own output and nothing else."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from learner.watching.steps import StepObserver, StepSeen

log = logging.getLogger(__name__)

_HELD = 1000
"""Steps that wait for a watcher that hangs. More would cost memory for a picture that nobody sees."""
_LAST_WORDS_S = 5.0
"""How long the end of training waits for watchers to write out: a hanging disk must not keep the process alive."""


class Observers:
    """Shows each step to every observer in a thread of its own. A fault of an observer is logged once, the first time;
    it is still shown the steps that follow, since a full disk may be emptied.

    Args:
        make: one function for each observer, which opens it, in that thread too. One that cannot be opened is left out.
    """

    def __init__(self, make: Sequence[Callable[[], StepObserver]]) -> None:
        self._steps: queue.Queue[StepSeen | None] = queue.Queue(_HELD)
        self._told: set[str] = set()
        self._thread: threading.Thread | None = None
        if make:
            self._thread = threading.Thread(target=self._run, args=(make,), name="watching", daemon=True)
            self._thread.start()

    def observe(self, step: StepSeen) -> None:
        """Hand a step over; never blocks, never raises."""
        if self._thread is None:
            return
        try:
            self._steps.put_nowait(step)
        except queue.Full:
            self._tell("queue", "watchers are more than %d steps behind; further steps are not shown", _HELD)

    def close(self) -> None:
        """Let every observer see what is waiting and close it; gives up on one that hangs."""
        if self._thread is None:
            return
        try:
            self._steps.put(None, timeout=_LAST_WORDS_S)
        except queue.Full:
            return
        self._thread.join(_LAST_WORDS_S)
        if self._thread.is_alive():
            log.warning("watchers did not finish in %.0f s and are left behind", _LAST_WORDS_S)

    def _run(self, make: Sequence[Callable[[], StepObserver]]) -> None:
        observers: list[StepObserver] = []
        for one in make:
            try:
                observers.append(one())
            except Exception as err:
                log.warning("a watcher cannot be opened, training goes on without it: %s", err)
        while (step := self._steps.get()) is not None:
            for observer in observers:
                try:
                    observer.observe(step)
                except Exception as err:
                    name = type(observer).__name__
                    self._tell(name, "%s failed on micro-batch %d, training goes on: %r", name, step.seq, err)
        for observer in observers:
            try:
                observer.close()
            except Exception as err:
                log.warning("%s could not be closed: %r", type(observer).__name__, err)

    def _tell(self, about: str, message: str, *values: object) -> None:
        if about not in self._told:
            self._told.add(about)
            log.warning(message, *values)
