"""A tiny policy, a run with micro-batches as the batcher leaves them, and a relay that puts them on the real topic."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sqlalchemy import Engine, create_engine, insert, select, text
from transformers import LlamaConfig, LlamaForCausalLM

from learner.config import LearnerConfig
from processors.relay import relay_once
from processors.runs import ensure_run
from schemas.arrays import pack_floats, pack_ids
from schemas.digests import batch_digest, canonical_json, content_id, sample_digest_of, sample_id
from schemas.messages import MICRO_BATCH_PUBLISHED, MicroBatchPublished
from schemas.publish import AckedPublisher
from schemas.recipes import Recipe, needs_of, recipe_named
from schemas.tables import micro_batches, outbox, rewards, runs, samples, teacher_scores, turns
from schemas.topics import MICRO_BATCHES

VOCABULARY = 200
HINTED_PROMPT = pack_ids([1])
RECIPE = recipe_named(
    "combine",
    {
        "judge": {"votes": 0},
        "hint": {"patterns": ["x"], "votes": 0},
        "optimizer": {"lr": 1e-3},
        "batch": {"max_staleness": 1},
    },
)


def tiny_model(directory: Path, seed: int = 0) -> Path:
    """A Llama of 2 layers in bfloat16 with something like a tokenizer beside it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(directory)
    (directory / "tokenizer.json").write_text('{"tiny": true}')
    return directory


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What differs between samples."""

    oldest_version: int | None
    reward: float | None = 1.0
    teacher: float | None = None
    """Added to every behaviour log-prob to get the teacher's; None: no teacher scores."""
    policy: str | None = None
    finish_reason: str = "stop"
    group: str | None = None
    session: str | None = None
    """None: a session of its own."""
    ordinal: int = 0


class Learning:
    """One run on a real database and topic, and the configuration of its learner."""

    def __init__(self, url: str, bootstrap: str, directory: Path, recipe: Recipe = RECIPE) -> None:
        self.url, self.bootstrap, self.directory, self.recipe = url, bootstrap, directory, recipe
        # Topics are shared by every test of the session.
        self.run = f"run-{secrets.token_hex(4)}"
        self.policy = "p"
        self.engine: Engine = create_engine(url)
        self.seq = 0
        self._random = np.random.default_rng(0)
        self._turns = 0
        self.start_run(self.run)

    def start_run(self, run: str, recipe: Recipe | None = None) -> None:
        """Have a run and make it the one that batches are added to."""
        with self.engine.begin() as connection:
            ensure_run(connection, run=run, kind="live", policy=self.policy, recipe=recipe or self.recipe)
        self.run, self.seq, self.recipe = run, 0, recipe or self.recipe

    def config(self, **more: Any) -> LearnerConfig:
        """A learner on one thread, since equal bits are what most tests look at."""
        fields: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "database_url": self.url,
            "run": self.run,
            "policy": self.policy,
            "model_dir": self.directory / "base",
            "weights_dir": self.directory / "weights",
            "threads": 1,
            "poll_s": 0.05,
        }
        return LearnerConfig(**{**fields, **more})

    def add_batch(self, turns_: list[Turn], *, send: bool = True) -> MicroBatchPublished:
        """The next micro-batch, as the batcher commits it; `send` puts it on the topic."""
        self.seq += 1
        digests, ids = [], []
        with self.engine.begin() as connection:
            for turn in turns_:
                turn_id = f"{self.run}-t{self._turns}"
                self._turns += 1
                ids.append(sample_id(self.run, turn_id))
                digests.append(self._add_sample(connection, turn_id, ids[-1], turn))
            digest = batch_digest(digests)
            message = MicroBatchPublished(
                micro_batch_id=content_id("batch", self.run, self.seq, digest),
                run=self.run,
                policy=self.policy,
                seq=self.seq,
                recipe_digest=self.recipe.digest(),
                sample_ids=ids,
                digest=digest,
            )
            connection.execute(
                insert(micro_batches).values(
                    micro_batch_id=message.micro_batch_id,
                    run=self.run,
                    policy=self.policy,
                    seq=self.seq,
                    recipe_digest=message.recipe_digest,
                    digest=digest,
                    size=len(ids),
                    state="published",
                )
            )
            for position, name in enumerate(ids):
                connection.execute(
                    samples.update()
                    .where(samples.c.sample_id == name)
                    .values(state="batched", micro_batch_id=message.micro_batch_id, position=position)
                )
            connection.execute(
                insert(outbox).values(
                    topic=MICRO_BATCHES,
                    message_id=message.micro_batch_id,
                    message_type=MICRO_BATCH_PUBLISHED,
                    key=self.policy,
                    value=canonical_json(message),
                )
            )
        if send:
            self.send()
        return message

    def send(self, topic: str = MICRO_BATCHES) -> int:
        """What the relay does with the outbox."""
        with AckedPublisher(self.bootstrap, client_id="test") as publisher, self.engine.begin() as connection:
            return relay_once(connection, publisher, topic, 100)

    def rows(self, query: str, **named: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), {"run": self.run, **named})]

    def one(self, query: str, **named: Any) -> tuple[Any, ...]:
        """The only row of a query."""
        (row,) = self.rows(query, **named)
        return row

    def execute(self, statement: str, **named: Any) -> None:
        """One statement, committed."""
        with self.engine.begin() as connection:
            connection.execute(text(statement), {"run": self.run, **named})

    def weights(self) -> dict[int, str]:
        """SHA-256 of each version's weight file, from its manifest."""
        found = self.rows("SELECT version, manifest FROM weight_versions WHERE policy = 'p' ORDER BY version")
        return {version: manifest["files"]["model.safetensors"]["sha256"] for version, manifest in found}

    def ends(self, message: MicroBatchPublished) -> list[tuple[Any, ...]]:
        """(state, drop_reason, staleness) of each sample of a micro-batch, in order."""
        query = select(samples.c.state, samples.c.drop_reason, samples.c.staleness)
        with self.engine.connect() as connection:
            found = connection.execute(
                query.where(samples.c.micro_batch_id == message.micro_batch_id).order_by(samples.c.position)
            )
            return [tuple(row) for row in found]

    def _add_sample(self, connection: Any, turn_id: str, name: str, turn: Turn) -> str:
        prompt, response = (int(n) for n in self._random.integers(3, 12, 2))
        ids = self._random.integers(0, VOCABULARY, prompt + response)
        logprobs = np.asarray(self._random.normal(-np.log(VOCABULARY), 0.02, response), dtype=np.float32)
        content: dict[str, Any] = {
            "prompt_ids": pack_ids(ids[:prompt]),
            "response_ids": pack_ids(ids[prompt:]),
            "response_logprobs": pack_floats(logprobs),
            "reward": turn.reward,
            "teacher_logprobs": None,
            "topk_ids": None,
            "topk_logprobs": None,
        }
        key = {"run": self.run, "turn_id": turn_id}
        connection.execute(
            insert(turns).values(
                turn_id=turn_id,
                session_id=turn.session or turn_id,
                ordinal=turn.ordinal,
                group_id=turn.group,
                kind="main",
                messages=[],
                tools=[],
                response={},
                finish_reason=turn.finish_reason,
                policy=turn.policy or self.policy,
                version_spans=[],
                oldest_version=turn.oldest_version,
                newest_version=turn.oldest_version,
                sampling={},
                token_source="engine",
                **{k: content[k] for k in ("prompt_ids", "response_ids", "response_logprobs")},
                prompt_tokens=prompt,
                response_tokens=response,
                next_state_ids=[],
                clock_skew=False,
                unknown={},
                sanitised=False,
            )
        )
        if turn.reward is not None:
            connection.execute(
                insert(rewards).values(
                    **key, status="scored", value=turn.reward, annotator_kind="CODE", votes_valid=1, votes_total=1
                )
            )
        if turn.teacher is not None:
            topk_ids = np.repeat(ids[prompt:], 4)
            content |= {
                "teacher_logprobs": pack_floats(logprobs + np.float32(turn.teacher)),
                "topk_ids": pack_ids(topk_ids),
                "topk_logprobs": pack_floats(np.repeat(logprobs, 4)),
            }
            connection.execute(
                insert(teacher_scores).values(
                    **key,
                    teacher="t",
                    hinted_prompt_ids=HINTED_PROMPT,
                    logprobs=content["teacher_logprobs"],
                    top_k=4,
                    topk_ids=content["topk_ids"],
                    topk_logprobs=content["topk_logprobs"],
                )
            )
        row = SimpleNamespace(
            **content,
            group_id=turn.group,
            session_id=turn.session or turn_id,
            ordinal=turn.ordinal,
            hinted_prompt_ids=None if turn.teacher is None else HINTED_PROMPT,
            student_ids=None,
        )
        digest = sample_digest_of(row, needs_of(self.recipe))
        connection.execute(
            insert(samples).values(
                sample_id=name, session_id=turn.session or turn_id, state="ready", content_digest=digest, **key
            )
        )
        return digest


def mixed(version: int, size: int = 4) -> list[Turn]:
    """Turns of one version: liked, disliked, and every other one with a teacher."""
    return [
        Turn(oldest_version=version, reward=1.0 if i % 2 else -1.0, teacher=0.5 if i % 2 == 0 else None)
        for i in range(size)
    ]


def recipe_in(learning: Learning) -> str:
    """The digest that the run's row holds."""
    with learning.engine.connect() as connection:
        return str(connection.execute(select(runs.c.recipe_digest).where(runs.c.run == learning.run)).scalar_one())
