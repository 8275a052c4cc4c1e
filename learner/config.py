"""What the learner is told: every address, directory and number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


def no_fault(_: str) -> None:
    """The fault hook in production: nothing happens."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """`run` must exist in the database; its row holds the recipe. `model_dir` is the base model, version 0."""

    bootstrap_servers: str
    database_url: str
    """SQLAlchemy form, `postgresql+psycopg://...`."""
    run: str
    policy: str
    model_dir: Path
    weights_dir: Path
    device: str = "cpu"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the forward and backward pass; the master weights are float32."""
    threads: int = 0
    """torch's threads; 0 leaves torch's own choice. Fixed threads make a rerun byte for byte the same."""
    tokens_per_forward: int = 1024
    """Padded tokens of one forward pass. More gains no speed on a CPU and costs memory for activations."""
    keep_last: int = 5
    """Versions whose files are kept beside the base and whatever a server serves; rows and manifests stay for ever."""
    poll_s: float = 0.2
    """The longest that a stop waits for a quiet topic."""
    stop_after: int | None = None
    """Consumed micro-batches of this process after which it ends; None runs until stopped."""
    fault: Callable[[str], None] = no_fault
    """Called with the name of each point where a crash matters; tests end the process there."""
