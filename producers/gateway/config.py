"""What the gateway is told: addresses, limits and names, all explicit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from producers.gateway.access.callers import Access
from producers.gateway.redaction.rules import RedactionConfig
from producers.gateway.tls import TlsConfig


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """One gateway. Any number may run before one policy server; each needs a `spool_dir` of its own."""

    bootstrap_servers: str
    """Kafka's brokers, host:port[,host:port…]. They need not be there: turns then go to the spool."""
    upstream_url: str
    """Base address of the policy's server, without /v1."""
    spool_dir: Path
    """Where turns wait on disk while the broker is away. Two gateways must not share it; a second one is refused."""
    blob_dir: Path
    """Where event values over 1 MiB go; every process that reads the log must see it."""
    model: str = "policy"
    """The name under which the upstream server knows the model; used where a request names none."""
    policy: str = "policy"
    """The policy's name in recorded turns."""
    api_key: str | None = None
    """Sent upstream as a bearer token; never logged."""
    host: str = "127.0.0.1"
    """Address to listen on. Others than this machine need a key, see `access`."""
    port: int = 8100
    """Port to listen on; 0 chooses a free one."""
    timeout_s: float = 120.0
    """The longest that one answer of the upstream server may take."""
    publish_timeout_s: float = 5.0
    """How long an answer may wait for the broker's acknowledgement before its turn goes to the spool instead."""
    retry_s: float = 2.0
    """While the broker is away it is tried again this often, in the background: no request waits for it."""
    max_body_bytes: int = 64 << 20
    """Largest request. A conversation of 32k tokens has 200 kB of text; pictures in base64 make the rest."""
    body_timeout_s: float = 60.0
    """How long a request's body may take to come. 64 MiB in it are 9 Mbit/s."""
    idle_s: float = 75.0
    """How long a connection may wait for a whole request head, whatever bytes come."""
    spool_max_bytes: int = 4 << 30
    """The spool's bound. Beyond it turns are served and not recorded, and the caller is told. A turn of 500 tokens
    takes about 10 kB, so this is an hour of 100 turns a second."""
    access: Access = "auto"
    """Who needs a key: everybody as soon as one was made (auto), everybody (keys), nobody (open)."""
    database_url: str | None = None
    """Where keys are kept, as SQLAlchemy takes it; None: there are none. It need not be there: the last list stays."""
    tls: TlsConfig | None = None
    """None: plain HTTP."""
    redaction: RedactionConfig = field(default_factory=RedactionConfig)
    """What is replaced before anything is recorded."""
    user_secret: str | None = None
    """Keys the digest that stands for a request's `user`; None: a plain digest."""
