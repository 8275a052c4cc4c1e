"""The settings that say who may use the gateway and what it records, as the gateway takes them."""

from __future__ import annotations

from hindstream.endpoints import Resolved
from hindstream.errors import UserError
from hindstream.settings import Settings
from producers.gateway.redaction.rules import RedactionConfig
from producers.gateway.tls import TlsConfig


def keys_url(settings: Settings, endpoints: Resolved) -> str | None:
    """Where keys are kept; None where there is no database, hence no key.

    Raises:
        UserError: an address is given and is none.
    """
    try:
        return endpoints.database_url
    except UserError:
        if settings.database.url is not None:
            raise
        return None


def tls_config(settings: Settings) -> TlsConfig | None:
    """The PEM files; None for plain HTTP.

    Raises:
        UserError: half of it is given.
    """
    tls = settings.gateway.tls
    if tls.certificate is not None and tls.key is not None:
        return TlsConfig(certificate=tls.certificate, key=tls.key, client_ca=tls.client_ca)
    if tls.certificate is None and tls.key is None and tls.client_ca is None:
        return None
    raise UserError("TLS needs both gateway.tls.certificate and gateway.tls.key; one of them is not set")


def redaction_config(settings: Settings) -> RedactionConfig:
    """What is replaced before anything is recorded."""
    redact = settings.gateway.redact
    return RedactionConfig(
        detectors=redact.detectors,
        rules=redact.rules,
        key=redact.key.get_secret_value() if redact.key is not None else None,
        within_s=redact.within_s,
    )


def user_secret(settings: Settings) -> str | None:
    """What keys the digest of a request's user; None: nothing does."""
    secret = settings.gateway.user_secret
    return secret.get_secret_value() if secret is not None else None
