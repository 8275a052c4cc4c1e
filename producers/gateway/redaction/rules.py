"""What is to be replaced, as settings say it, and replacing it in one text."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import regex  # type: ignore[import-untyped]

from producers.gateway.redaction.detectors import DETECTORS, Detector, matches

_NAME = regex.compile(r"[a-z][a-z0-9_-]{0,31}")
_HASH_DIGITS = 12
"""48 bits: among a million different values of one kind two are alike with a chance of one in 500."""


class BadRule(ValueError):
    """A rule of the settings is none: which, and why."""


class TooSlow(RuntimeError):
    """The rules took longer than they may."""


@dataclass(frozen=True, kw_only=True)
class RedactionConfig:
    """What is replaced. Nothing, unless it is said."""

    detectors: Sequence[str] = ()
    """Names in `DETECTORS`."""
    rules: Mapping[str, str] = field(default_factory=dict)
    """Name -> regular expression, as the package regex reads it (Python's as well). They run before the detectors."""
    key: str | None = None
    """With it placeholders carry a keyed hash of what they replace, so that equal things stay equal."""
    within_s: float = 2.0
    """How long the rules may take for the events of one request. Any regular expression can be made to take for ever by
    some text; beyond this the request is not recorded."""


class Rules:
    """The rules, compiled.

    Raises:
        BadRule: one of them is none.
    """

    def __init__(self, config: RedactionConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = config.key.encode() if config.key else None
        self._within_s = config.within_s
        self._clock = clock
        self._all: list[tuple[str, Detector]] = [(name, _compiled(name, said)) for name, said in config.rules.items()]
        for name in config.detectors:
            if name not in DETECTORS:
                raise BadRule(f"no detector is called {name!r}; there are {', '.join(DETECTORS)}")
        self._all += [(name, find) for name, find in DETECTORS.items() if name in config.detectors]

    def deadline(self) -> float:
        """When those who begin now must be done."""
        return self._clock() + self._within_s

    def text(self, text: str, deadline: float) -> str:
        """`text` with what the rules find replaced.

        Raises:
            TooSlow: the deadline is over.
        """
        for name, find in self._all:
            left = deadline - self._clock()
            if left <= 0:
                raise TooSlow
            try:
                spans = list(find(text, left))
            except TimeoutError:
                raise TooSlow from None
            if spans:
                text = self._replaced(name, text, spans)
        return text

    def _replaced(self, name: str, text: str, spans: Sequence[tuple[int, int]]) -> str:
        parts, done = [], 0
        for start, end in spans:
            parts += [text[done:start], self._placeholder(name, text[start:end])]
            done = end
        return "".join([*parts, text[done:]])

    def _placeholder(self, name: str, found: str) -> str:
        if self._key is None:
            return f"[{name}]"
        said = f"{name}\0{found}".encode("utf-8", "surrogatepass")
        return f"[{name}:{hmac.new(self._key, said, 'sha256').hexdigest()[:_HASH_DIGITS]}]"


def _compiled(name: str, said: str) -> Detector:
    if not _NAME.fullmatch(name) or name in DETECTORS:
        raise BadRule(
            f"{name[:40]!r} is no name for a rule: small letters, digits, '-' and '_', at most 32, a letter first, and "
            "not a detector's"
        )
    try:
        pattern = regex.compile(said)
    except regex.error as err:
        raise BadRule(f"rule {name}: no regular expression: {err}") from None
    if pattern.fullmatch("") is not None:
        raise BadRule(f"rule {name}: it fits an empty text, so it would fit everywhere")
    return partial(matches, pattern)
