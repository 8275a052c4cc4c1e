"""What the learner, and what follows its weights, are told: every address, directory and number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

LEAST_KEPT = 2
"""A server may still be reading the version before the newest, so at least these two keep their files."""


def no_fault(_: str) -> None:
    """The fault hook in production: nothing happens."""


@dataclass(frozen=True, kw_only=True)
class RanksConfig:
    """This process as one of several that are one learner. `rank` 0 reads the log, commits and writes; `local_rank`
    counts on its machine and names its GPU. `init_method`: how the ranks find each other, as torch.distributed names
    it; "env://" is torchrun's way."""

    rank: int
    local_rank: int
    world_size: int
    init_method: str = "env://"


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """`run` must exist in the database; its row holds the recipe. `model_dir` is the base model, version 0."""

    bootstrap_servers: str
    database_url: str = field(repr=False)
    """SQLAlchemy form, `postgresql+psycopg://...`."""
    run: str
    policy: str
    model_dir: Path
    weights_dir: Path
    recipe_digest: str | None = None
    """Digest of the recipe that the settings name, to be refused where the run has another; None asks nothing."""
    device: str = "cpu"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the forward and backward pass, and of the weights on disk; the master weights are float32."""
    threads: int = 0
    """torch's threads; 0 leaves torch's own choice. Fixed threads make a rerun byte for byte the same."""
    tokens_per_forward: int = 1024
    """Tokens of one forward pass. More gains no speed on a CPU and costs memory for activations."""
    recompute: bool = False
    """Compute the layers' activations again in the backward pass instead of keeping them."""
    publish: Literal["full", "delta", "adapter"] = "full"
    """What of a version goes to disk: all weights, what differs from the newest full version, or a LoRA adapter."""
    full_every: int = 16
    """With deltas: versions between two full ones. A delta grows with the distance from its base, and losing a base
    loses every delta of it."""
    deterministic: bool = False
    """Refuse every operation whose result may differ between two runs on the same machine."""
    keep_last: int = 5
    """Versions whose weight files are kept, beside the base and whatever a server serves. Rows and manifests stay."""
    keep_every: int = 0
    """Every so many versions one is kept for good; 0: none."""
    upload_url: str | None = None
    """Where copies of versions go, as fsspec names it (`s3://bucket/prefix`); None: nowhere."""
    upload_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """fsspec's options of that storage, secrets among them."""
    upload_wait_s: float = 60.0
    """The longest that a learner that ends waits for copies; what is missing then, the next one makes."""
    state_every: int = 4
    """Versions between two saved trainer states. A state is six times the weights, so saving each would cost more than
    small steps do; a restart repeats at most this many steps less one."""
    poll_s: float = 0.2
    """The longest that a stop waits for a quiet topic."""
    stop_after: int | None = None
    """Consumed micro-batches of this process after which it ends; None runs until stopped."""
    ranks: RanksConfig | None = None
    """Where several processes are one learner; None: this one alone."""
    fault: Callable[[str], None] = no_fault
    """Called with the name of each point where a crash matters; tests end the process there."""


@dataclass(frozen=True, kw_only=True)
class FollowConfig:
    """One policy server that follows one policy."""

    bootstrap_servers: str
    database_url: str = field(repr=False)
    policy: str
    weights_dir: Path
    """Where versions lie if they are no longer where they were written: the home directory was moved."""
    assembled_dir: Path
    """Where deltas are put together for the server, which must see it: the home directory's `serving`."""
    server_url: str
    model: str
    """The server's name of the model."""
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 300.0
    """The longest that one call may take. Loading takes 0.4 s for 135M parameters; a 70B model comes from a cold disk
    in minutes."""
    poll_s: float = 0.2
    """The longest that a stop waits for a quiet topic."""
    retry_s: float = 5.0
    """Before a version that could not be loaded is tried again; doubled each time, so that a version that never loads
    costs its server one short pause in ten minutes."""
    check_s: float = 2.0
    """Between looks at the server's tag: one that was restarted serves its base model until this is noticed."""
    version: int | None = None
    """The only version that is loaded, as a pinned teacher needs it; None: always the newest."""
