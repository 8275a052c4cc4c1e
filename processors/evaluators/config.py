"""What an evaluator service needs to know: which servers to ask, how much at once, how patient to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from processors.evaluators.queue import Signal


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A model server that speaks vLLM's OpenAI-compatible HTTP.

    `url` is its base address without `/v1`, `model` the name under which it knows the model. `timeout_s` bounds one
    answer; `concurrency` is how many requests this process has in flight there at once.
    """

    url: str
    model: str
    timeout_s: float
    concurrency: int
    api_key: str | None = field(default=None, repr=False)
    chunk_tokens: int = 4096
    """Response tokens that are scored at once where the server reads its prefix cache meanwhile. An answer holds about
    100 bytes for each of a place's likeliest tokens: 4 MB at `top_k` 8."""
    place_requests: int = 1024
    """Most requests that one response may cost for single places; see `processors.evaluators.prompt_scores`. What they
    do not reach stays unknown."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorsConfig:
    """One evaluator service.

    `judge` answers reward and hint questions; None where no run's recipe asks a model. `teacher` scores responses;
    None leaves teacher evaluations to other workers. `policy` is the server whose tokenizer the teacher's must equal.
    """

    worker: str
    """Name of this process in claims, new at every start: a claim of an earlier life is not ours."""
    judge: ServerConfig | None
    teacher: ServerConfig | None
    policy: ServerConfig | None
    runs: tuple[str, ...] | None = None
    """Only evaluations of these runs; None: of all."""
    signals: tuple[Signal, ...] = ("reward", "hint", "teacher")
    """Only these."""
    tokenizer: Path | None = None
    """Directory of the policy's model: it makes tokens of text for a teacher that reads no hint. None: only turns with
    their engine's tokens are scored."""
    concurrency: int
    """Evaluations that wait for a model server at once."""
    lease_s: float
    """A claim is anybody's after this long without a heartbeat (sent every third of it). Short: a killed worker's
    turns come back soon. Too short: a worker that stalls pays for an answer that another one asks again."""
    claim_batch: int = 64
    """Most evaluations that rules decide in one transaction. Beyond 64 the commit no longer dominates."""
    max_attempts: int = 5
    """Claims of one evaluation before it fails: with the backoff below, about 15 s of a server that is away."""
    backoff_base_s: float = 1.0
    """Wait before the second try, doubled for each next one."""
    backoff_max_s: float = 60.0
    """Longest such wait: what a turn costs at worst after its server is back."""
    poll_min_s: float = 0.05
    poll_max_s: float = 0.2
    """Without work the queue is looked at after `poll_min_s`, then ever less often, down to every `poll_max_s`: each
    look is three index scans, under a millisecond together."""
    judge_characters: int = 4800
    """Text of a turn that a judge is shown, in characters: about 1,600 tokens of English, which fits into the local
    server's 2,048 with the question. What is longer loses its middle, visibly marked."""
