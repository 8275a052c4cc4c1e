"""What all ranks do together: a method of the first rank's object that every other rank calls on its own.

The first rank alone reads the log, decides, commits and writes. Its methods that compute with the weights are marked
`together`: each call is told to the others, who wait in `follow`, and the methods' own sums over ranks meet. What one
rank alone could answer must not be marked, and a marked method must not call another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from learner.errors import LearnerStopped
from learner.ranks import hear, rank, rank_gone, tell

Arguments = ParamSpec("Arguments")
Owner = TypeVar("Owner")
Result = TypeVar("Result")


def together(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """Have every rank run `method` where the first one does; arguments are pickled. `__init__` may be marked too.

    Raises:
        LearnerStopped: from the method, another rank ended.
    """

    def told(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not rank():
            tell((method.__name__, args, kwargs, torch.get_num_threads()))
        with rank_gone():
            return method(self, *args, **kwargs)

    return update_wrapper(told, method)


def follow(kind: type[Any]) -> None:
    """Every rank's but the first: make a `kind` where the first rank makes one, and call what it calls, on as many
    threads, until it says that it is done. Errors are the first rank's too, or end this rank, and with it all.

    Raises:
        LearnerStopped: another rank ended.
    """
    own: Any = None
    while (word := hear()) is not None:
        assert isinstance(word, tuple)
        name, args, kwargs, threads = word
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        if name == "__init__":
            own = object.__new__(kind)
        getattr(kind, name)(own, *args, **kwargs)


@contextmanager
def leading(*ends: type[Exception]) -> Iterator[None]:
    """Inside the `with` the first rank tells; at the end, by itself or by one of `ends`, the others stop
    following. After another error they may be anywhere, so they are left to notice that this rank ends."""
    try:
        yield
    except ends:
        _dismiss()
        raise
    _dismiss()


def _dismiss() -> None:
    with suppress(LearnerStopped):  # a rank that is gone
        tell(None)
