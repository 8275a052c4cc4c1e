"""The keys that open this gateway, in memory; what it knew last is on its disk.

A gateway serves while Postgres is away, so no request asks the database: every few seconds the whole list is read, and
where it changed a copy of it (hashes only) is written beside the spool. While the list cannot be read the last one
stays: known keys open, unknown ones do not, and a revocation waits until the database is back. A gateway that has
never read a list, and finds no copy, opens to nobody.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from producers.gateway.access.callers import Caller
from producers.gateway.access.key_form import digest_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One key that is not revoked. `digest` in hexadecimal; `expires_at` in Unix seconds, None: never."""

    digest: str
    tenant: str
    recorded: bool
    expires_at: float | None


@dataclass(frozen=True)
class KeyList:
    """All of them; `exist`: whether any key was ever made, revoked ones too. Revoking the last one opens no door."""

    grants: tuple[Grant, ...] = ()
    exist: bool = False


class KeysAway(RuntimeError):
    """The list cannot be read now; says why, without addresses and passwords."""


class KeyRing:
    """Keys by their hash. Read it in one thread at a time; `caller` may be asked in another meanwhile."""

    def __init__(
        self, source: Callable[[], KeyList] | None, copy: Path, clock: Callable[[], float] = time.time
    ) -> None:
        """`source` reads the list; None where there is no database, hence no key."""
        self._source = source
        self._copy = copy
        self._clock = clock
        self._list: KeyList | None = KeyList() if source is None else None
        self._by_digest: dict[bytes, Grant] = {}
        self._away = False

    @property
    def known(self) -> bool:
        """Whether a list was ever read, from the database or from the copy."""
        return self._list is not None

    @property
    def exist(self) -> bool:
        """Whether any key was ever made."""
        return self._list is not None and self._list.exist

    def caller(self, key: str) -> Caller | None:
        """Whose key this is; None where it opens nothing.

        It is found by its hash, so how long the search takes says nothing about any key: nobody can choose a hash.
        """
        digest = digest_of(key)
        grant = self._by_digest.get(digest)
        if grant is None or not hmac.compare_digest(bytes.fromhex(grant.digest), digest):
            return None
        if grant.expires_at is not None and grant.expires_at <= self._clock():
            return None
        return Caller(grant.tenant, grant.recorded)

    def refresh(self) -> None:
        """Read the list; where it cannot be read, keep what is known, or else take the copy."""
        if self._source is None:
            return
        try:
            found = self._source()
        except KeysAway as err:
            if not self._away:
                log.warning("the keys cannot be read (%s); those known last stay", err)
            self._away = True
            if self._list is None:
                self._take(self._read_copy())
            return
        if self._away:
            log.warning("the keys can be read again")
        self._away = False
        if found != self._list:
            self._take(found)
            self._write_copy(found)

    def _take(self, found: KeyList | None) -> None:
        if found is not None:
            self._by_digest = {bytes.fromhex(grant.digest): grant for grant in found.grants}
            self._list = found

    def _read_copy(self) -> KeyList | None:
        try:
            plain = json.loads(self._copy.read_bytes())
            return KeyList(_grants(plain["keys"]), bool(plain["exist"]))
        except FileNotFoundError:
            log.error("%s is not there either: nobody is let in until the keys can be read", self._copy)  # noqa: TRY400
        except (OSError, ValueError, KeyError, TypeError) as err:
            log.error(  # noqa: TRY400
                "%s cannot be read (%s): nobody is let in until the keys can be", self._copy, type(err).__name__
            )
        return None

    def _write_copy(self, found: KeyList) -> None:
        text = json.dumps({"exist": found.exist, "keys": [asdict(grant) for grant in found.grants]}, indent=1)
        half = self._copy.with_name(f"{self._copy.name}.{os.getpid()}")
        try:
            self._copy.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            half.replace(self._copy)
        except OSError as err:
            log.warning(
                "%s cannot be written (%s); after a restart without the database nobody is let in",
                self._copy,
                err.strerror,
            )


def _grants(plain: Iterable[dict[str, object]]) -> tuple[Grant, ...]:
    grants = []
    for one in plain:
        expires = one["expires_at"]
        if not isinstance(expires, int | float | None) or isinstance(expires, bool):
            raise TypeError("expires_at")
        digest = str(one["digest"])
        if len(bytes.fromhex(digest)) != 32:
            raise ValueError("digest")
        grants.append(
            Grant(digest=digest, tenant=str(one["tenant"]), recorded=one["recorded"] is True, expires_at=expires)
        )
    return tuple(grants)
