"""TLS: the certificate that the gateway shows, and whose certificates it wants to see."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_LOOK_S = 5.0
"""How often the files are looked at: a certificate is renewed days before it ends."""


class BadTls(ValueError):
    """A file is missing, or is not what it should be; says which."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """PEM files. With `client_ca` only callers whose certificate it signed are let in."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Tls:
    """The context for a server, kept at what the files say.

    Raises:
        BadTls: they say nothing usable.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._seen = self._stamps()
        self.context = _fresh(config)

    async def watch(self) -> None:
        """Until cancelled: take a new certificate when its file changes. Connections that are open keep the old one."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self.reload)

    def reload(self) -> bool:
        """Take what the files say, if they changed; where that is nothing usable, the old certificate stays. The
        client CA is added to those that are trusted; to trust one no longer needs a restart."""
        seen = self._stamps()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            _fresh(self._config)  # so that half a pair changes nothing
            _load(self.context, self._config)
        except BadTls as err:
            log.error("%s; the old certificate stays", err)  # noqa: TRY400
            return False
        log.info("the certificate was renewed from %s", self._config.certificate)
        return True

    def _stamps(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for path in (self._config.certificate, self._config.key, self._config.client_ca):
            try:
                found = path.stat() if path is not None else None
            except OSError:
                found = None
            stamps.append((found.st_mtime_ns, found.st_ino) if found is not None else None)
        return stamps


def _fresh(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: TlsConfig) -> None:
    for path in filter(None, (config.certificate, config.key, config.client_ca)):
        try:
            path.read_bytes()
        except OSError as err:
            raise BadTls(f"TLS: {path} cannot be read: {err.strerror}") from None
    try:
        context.load_cert_chain(config.certificate, config.key, password=_no_password)
    except (ssl.SSLError, ValueError, RuntimeError) as err:
        why = "the key has a password; give one without" if isinstance(err, RuntimeError) else _reason(err)
        raise BadTls(f"TLS: {config.certificate} and {config.key} are no pair of PEM files: {why}") from None
    if config.client_ca is not None:
        try:
            context.load_verify_locations(config.client_ca)
        except (ssl.SSLError, ValueError) as err:
            raise BadTls(f"TLS: {config.client_ca} holds no certificate in PEM: {_reason(err)}") from None
        context.verify_mode = ssl.CERT_REQUIRED


def _no_password() -> str:
    raise RuntimeError("password")


def _reason(err: Exception) -> str:
    return getattr(err, "reason", None) or type(err).__name__
