"""`hindstream topics create`: every topic of the contract is on the broker, with its partitions and retention."""

from __future__ import annotations

import typer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError
from rich.console import Console
from rich.table import Table

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings
from schemas.topics import AGENT_EVENTS, TopicSpec, topic_specs

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

_ANSWER_MS = 10_000
"""A broker that is there answers in milliseconds; one that has just been started, in a few seconds."""
_HOUR_MS = 3_600_000


@app.callback()
def root() -> None:
    """Create and check the Kafka topics."""


@app.command()
def create() -> None:
    """Create the topics that are not there yet; those that are stay as they are."""
    settings = load_settings()
    servers = resolve_endpoints(settings).bootstrap_servers
    made = ensure_topics(servers, settings.kafka.partitions, settings.kafka.retention_hours)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("topic", "partitions", "retention", ""):
        table.add_column(column)
    for spec in _specs(settings.kafka.partitions, settings.kafka.retention_hours):
        state = "created" if spec.name in made else "is there"
        table.add_row(spec.name, str(spec.partitions), retention(spec), state)
    Console().print(table)


def ensure_topics(servers: str, event_partitions: int, retention_hours: int = -1) -> set[str]:
    """Have every topic on the brokers `servers`; returns the names of those created now. Safe to call at once from
    several processes.

    Raises:
        UserError: no broker answers or it refuses, or a topic has fewer partitions than asked for.
    """
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=servers.split(","), client_id="hindstream-topics", bootstrap_timeout_ms=_ANSWER_MS
        )
        try:
            return _ensure(admin, _specs(event_partitions, retention_hours), servers)
        finally:
            admin.close()
    except KafkaError as err:
        raise UserError(
            f"the topics could not be made at {servers} ({type(err).__name__}: {err}); look at `hindstream status`, or "
            "set HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS"
        ) from None


def retention(spec: TopicSpec) -> str:
    """How long a topic keeps its records, in words."""
    if spec.config.get("cleanup.policy") == "compact":
        return "the newest of each key"
    milliseconds = int(spec.config["retention.ms"])
    return "for ever" if milliseconds < 0 else f"{milliseconds / _HOUR_MS:g} h"


def _specs(event_partitions: int, retention_hours: int) -> list[TopicSpec]:
    """The topics as the settings want them: `kafka.retention_hours` is about the log of events alone."""
    milliseconds = -1 if retention_hours < 0 else retention_hours * _HOUR_MS
    return [
        TopicSpec(name=spec.name, partitions=spec.partitions, config={**spec.config, "retention.ms": str(milliseconds)})
        if spec.name == AGENT_EVENTS
        else spec
        for spec in topic_specs(event_partitions)
    ]


def _ensure(admin: KafkaAdminClient, specs: list[TopicSpec], servers: str) -> set[str]:
    existing = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}
    for spec in specs:
        have = existing.get(spec.name, spec.partitions)
        if have < spec.partitions:
            raise UserError(
                f"topic {spec.name} at {servers} has {have} partitions, not {spec.partitions}. Adding some would move "
                f"sessions to other partitions, out of order with what they have there: set "
                f"HINDSTREAM_KAFKA__PARTITIONS={have}, or make a new topic"
            )
    made = set()
    for spec in specs:
        if spec.name in existing:
            continue
        # -1: as many copies as the cluster makes by default, one on the local broker and three on a production one.
        wanted = {"num_partitions": spec.partitions, "replication_factor": -1, "configs": spec.config}
        try:
            admin.create_topics({spec.name: wanted}, wait_for_metadata=True)
        except TopicAlreadyExistsError:  # another process was first
            continue
        made.add(spec.name)
    return made
