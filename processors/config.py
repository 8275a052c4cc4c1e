"""Everything a worker is told: addresses, limits, and which roles it plays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from schemas.recipes import Recipe
from schemas.topics import AGENT_EVENTS

Role = Literal["agents", "evaluators", "batcher", "relay", "idle"]
ROLES: tuple[Role, ...] = ("agents", "evaluators", "batcher", "relay", "idle")
"""`agents` records the log (with Faust); `evaluators` judge, hint and teach; `batcher` publishes micro-batches; `relay`
sends the outbox to Kafka; `idle` closes sessions that fell silent. Any may run in several workers at once."""

DEFAULT_GROUP = "hindstream-recorder"


class WorkerMisconfigured(ValueError):
    """A worker that cannot start as it is told: what to change."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The live run that the worker works for: its name, the policy that it trains, its recipe."""

    run: str
    policy: str
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class RecorderConfig:
    """How the agent records.

    `group_id` names the consumer group of `topic`. A transaction holds at most `batch_events` events. `dead_letter_limit`
    unreadable records in a row on one partition stop the worker. `data_dir` is a directory for Faust's own use.
    """

    topic: str = AGENT_EVENTS
    group_id: str = DEFAULT_GROUP
    batch_events: int = 256
    dead_letter_limit: int = 100
    data_dir: Path
    blob_dir: Path


@dataclass(frozen=True, kw_only=True)
class IdleConfig:
    """A session silent for `idle_s` seconds is closed; it is looked for every `every_s` seconds."""

    idle_s: float
    every_s: float
