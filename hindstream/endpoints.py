"""Where the services are, whoever runs them: the settings first, then the local stack that is up."""

from __future__ import annotations

from dataclasses import dataclass

from hindstream.errors import UserError
from hindstream.settings import Settings
from hindstream.stack.local import Stack

NOT_RUNNING = "run `hindstream up`, or set {variable}"


@dataclass(frozen=True)
class Resolved:
    """The addresses in force. Each is asked for by name and raises UserError if there is none, so that a
    command which needs only the database does not ask for a model server."""

    settings: Settings
    stack: Stack

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's brokers, host:port[,host:port…]."""
        local = self.stack.endpoints().bootstrap_servers
        return _first(self.settings.kafka.bootstrap_servers, local, "broker", "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS")

    @property
    def database_url(self) -> str:
        """postgresql+psycopg://user:password@host:port/name, as SQLAlchemy takes it. Not for printing."""
        given = self.settings.database.url
        url = (
            given.get_secret_value()
            if given is not None
            else _first(None, self.stack.endpoints().database_url, "Postgres", "HINDSTREAM_DATABASE__URL")
        )
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in ("postgres", "postgresql", "postgresql+psycopg"):
            raise UserError(f"database.url must start with postgresql://, not {scheme.split(':')[0]!r}")
        return f"postgresql+psycopg://{rest}"

    @property
    def policy_url(self) -> str:
        """Base address of the policy's server, without /v1 and without a slash at its end."""
        local = self.stack.endpoints().policy_url
        return _first(self.settings.policy.url, local, "model server", "HINDSTREAM_POLICY__URL").rstrip("/")

    @property
    def judge_url(self) -> str:
        """The judge's server: its own, else the policy's."""
        return (self.settings.judge.url or self.policy_url).rstrip("/")

    @property
    def teacher_url(self) -> str:
        """The teacher's server: its own, else the policy's."""
        return (self.settings.teacher.url or self.policy_url).rstrip("/")


def resolve_endpoints(settings: Settings) -> Resolved:
    """The addresses that these settings lead to."""
    return Resolved(settings, Stack(settings.home_dir, settings))


def _first(given: str | None, local: str | None, what: str, variable: str) -> str:
    found = given or local
    if found is None:
        raise UserError(
            f"no {what}: none runs here and the settings give none; {NOT_RUNNING.format(variable=variable)}"
        )
    return found
