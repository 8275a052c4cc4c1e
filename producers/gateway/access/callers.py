"""Whose a request is, and the sessions that are his. Pure.

Tenants give their sessions what names they like, so on the log each session id carries the tenant: `tenant/acme/s1`.
Turn ids are hashes of session ids, so they never meet either. The caller hears the name that he gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiohttp import web

Access = Literal["auto", "keys", "open"]
"""auto: keys are asked for as soon as one was made; keys: always; open: never."""

PREFIX = "tenant/"
"""What the session ids of tenants begin with; where no key is needed, nobody may give such a name."""


@dataclass(frozen=True)
class Caller:
    """Who asks. `tenant` is None where no key is needed; `recorded`: whether his requests are recorded at all."""

    tenant: str | None = None
    recorded: bool = True

    def scoped(self, session_id: str) -> str:
        """The session id on the log for the name that the caller gave.

        Raises:
            ValueError: it is a tenant's, and the caller is none.
        """
        if self.tenant is not None:
            return f"{PREFIX}{self.tenant}/{session_id}"
        if session_id.startswith(PREFIX):
            raise ValueError(f"a session id that begins with {PREFIX!r} is a tenant's, for which a key is needed")
        return session_id

    def owns(self, session_id: str) -> bool:
        """Whether a session id of the log is this caller's."""
        mine = f"{PREFIX}{self.tenant}/" if self.tenant is not None else ""
        return session_id.startswith(mine) if mine else not session_id.startswith(PREFIX)


def public(session_id: str) -> str:
    """The name that the caller gave, from a session id of the log."""
    return session_id.split("/", 2)[2] if session_id.startswith(PREFIX) else session_id


CALLER = web.RequestKey("caller", Caller)
"""Where the guard leaves who asks."""


def caller_of(request: web.Request) -> Caller:
    """Who asks."""
    return request.get(CALLER) or Caller()
