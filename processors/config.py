"""Everything a worker is told: addresses, limits, and which roles it plays."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from processors.batcher import BatcherConfig
from processors.evaluators.config import EvaluatorsConfig
from processors.idle import IdleConfig
from processors.letter_retries import LettersConfig
from processors.relay import RelayConfig
from schemas.recipes import Recipe
from schemas.topics import AGENT_EVENTS

Role = Literal["agents", "evaluators", "batcher", "relay", "idle", "letters"]
ROLES: tuple[Role, ...] = ("agents", "evaluators", "batcher", "relay", "idle", "letters")
"""`agents` records the log (with Faust); `evaluators` judge, hint and teach; `batcher` publishes micro-batches; `relay`
sends the outbox to Kafka; `idle` closes sessions that fell silent; `letters` replays dead letters as their policy says.
Any may run in several workers at once."""

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

    `group_id` names the consumer group of `topic`. A transaction holds at most `batch_events` events.
    `dead_letter_limit` unreadable records in a row on one partition stop the worker, and so do more than
    `dead_letter_share` of its latest `dead_letter_window`. `data_dir` is a directory for Faust's own use.
    """

    topic: str = AGENT_EVENTS
    group_id: str = DEFAULT_GROUP
    batch_events: int = 256
    dead_letter_limit: int = 100
    dead_letter_window: int = 1000
    dead_letter_share: float = 0.05
    data_dir: Path
    blob_dir: Path


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """One worker process.

    `database_url` is in SQLAlchemy form; `pool_size` is the most connections it keeps. `evaluators` is needed only by
    the role of that name.
    """

    bootstrap_servers: str
    database_url: str = field(repr=False)
    pool_size: int
    roles: tuple[Role, ...] = ROLES
    run: RunConfig
    recorder: RecorderConfig
    evaluators: EvaluatorsConfig | None
    batcher: BatcherConfig
    relay: RelayConfig
    idle: IdleConfig
    letters: LettersConfig | None = None
    """None: dead letters wait for somebody."""

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            WorkerMisconfigured: with the reason.
            InvalidRecipe: the recipe cannot work; nobody to judge is one reason.
        """
        unknown = [role for role in self.roles if role not in ROLES]
        if unknown or not self.roles:
            raise WorkerMisconfigured(f"no role {', '.join(unknown) or 'given'}; there are: {', '.join(ROLES)}")
        if "evaluators" in self.roles and self.evaluators is None:
            raise WorkerMisconfigured("the role evaluators needs the addresses of its model servers")
        self.run.recipe.check()
