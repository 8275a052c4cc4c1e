"""The SQL side of the contract: facts, work, results, learning and delivery, one module each."""

from schemas.tables.access import gateway_keys, tenants
from schemas.tables.base import metadata
from schemas.tables.delivery import dead_letters, outbox
from schemas.tables.facts import events, feedback, next_states, sessions, turn_completions, turns
from schemas.tables.learning import (
    metric_definitions,
    micro_batches,
    training_steps,
    weight_loads,
    weight_pins,
    weight_uploads,
    weight_versions,
)
from schemas.tables.replays import replays
from schemas.tables.results import hints, model_answers, rewards, teacher_scores, votes
from schemas.tables.work import evaluations, open_questions, runs, samples

__all__ = [
    "dead_letters",
    "evaluations",
    "events",
    "feedback",
    "gateway_keys",
    "hints",
    "metadata",
    "metric_definitions",
    "micro_batches",
    "model_answers",
    "next_states",
    "open_questions",
    "outbox",
    "replays",
    "rewards",
    "runs",
    "samples",
    "sessions",
    "teacher_scores",
    "tenants",
    "training_steps",
    "turn_completions",
    "turns",
    "votes",
    "weight_loads",
    "weight_pins",
    "weight_uploads",
    "weight_versions",
]
