"""How the parts of a worker are: told in the log when it changes, and by the exit code when one cannot go on."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

State = Literal["ok", "waiting", "failed"]

_log = logging.getLogger(__name__)


@dataclass
class Health:
    """State of each part by name. `waiting`: something outside is away and the part tries again; `failed`: it needs a
    person. A part that said nothing is not listed."""

    parts: dict[str, tuple[State, str]] = field(default_factory=dict)

    def ok(self, part: str) -> None:
        """The part works."""
        self._set(part, "ok", "")

    def waiting(self, part: str, why: str) -> None:
        """The part waits for something that may come back by itself."""
        self._set(part, "waiting", why)

    def failed(self, part: str, why: str) -> None:
        """The part cannot go on."""
        self._set(part, "failed", why)

    def in_words(self) -> str:
        """One line, for example "agents: ok, relay: waiting (broker away)"."""
        return ", ".join(
            f"{part}: {state} ({why})" if why else f"{part}: {state}" for part, (state, why) in self.parts.items()
        )

    def _set(self, part: str, state: State, why: str) -> None:
        before = self.parts.get(part)
        self.parts[part] = (state, why)
        if before != (state, why) and not (before is None and state == "ok"):
            level = {"ok": logging.INFO, "waiting": logging.WARNING, "failed": logging.ERROR}[state]
            _log.log(level, "health: %s", self.in_words())
