"""What a key looks like, and the only form in which it is kept. Pure.

A key is 256 random bits, so nobody finds it from its SHA-256 by trying, and a slow hash, which protects passwords that
people choose, would only make each request slow.
"""

from __future__ import annotations

import hashlib
import re
import secrets

_PREFIX = "hs_"
"""So that people and scanners of repositories see what it is."""

_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def new_key() -> str:
    """A key that nobody else has."""
    return _PREFIX + secrets.token_urlsafe(32)


def new_key_id() -> str:
    """What lists call a key; drawn by itself, so that it says nothing about the key."""
    return secrets.token_hex(4)


def digest_of(key: str) -> bytes:
    """SHA-256 of the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def tenant_of(name: str) -> str:
    """The tenant's name, checked: it becomes part of session ids.

    Raises:
        ValueError: it is none.
    """
    if not _TENANT.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no name of a tenant: up to 63 small letters, digits, '-', '_' and '.', a letter or "
            "digit first"
        )
    return name
