"""A micro-batch out of Postgres: its samples in order, checked against the digests that were announced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, text

from learner.errors import LearnerStopped
from learner.samples import InvalidSample, TrainingSample
from learner.texts import pairs_of, tokens_of
from schemas.arrays import unpack_floats, unpack_ids
from schemas.chat_tokens import ChatTokens
from schemas.digests import batch_digest, sample_digest_of
from schemas.messages import MicroBatchPublished
from schemas.recipes import Needs, needs_of, recipe_from_dict
from schemas.states import DROP_REASONS


@dataclass(frozen=True)
class Drop:
    """A reason of `schemas.states.DROP_REASONS`, and the same in words with numbers."""

    reason: str
    detail: str


@dataclass(frozen=True)
class Loaded:
    """One sample, and whose tokens it holds: the policy that answered and the oldest weight version among them.

    `replayed`: a replay trains what an older policy said. No version of the new one is comparable with it, so no
    staleness is known; how far off it is shows in the importance ratios. `timeless`: nor is one asked for where the
    recipe reads no log-prob of whoever answered. `unusable`: why it has no tokens to train; the sample is then empty.
    """

    sample: TrainingSample
    policy: str
    oldest_version: int | None
    replayed: bool = False
    timeless: bool = False
    unusable: Drop | None = None


_CONTENT = text(
    """
    SELECT s.sample_id, s.content_digest, s.state, s.staleness, t.prompt_ids, t.response_ids, t.response_logprobs,
           s.replay_order IS NOT NULL AS replayed, t.erased_at IS NOT NULL AS erased,
           t.finish_reason, t.policy, t.oldest_version, t.group_id,
           t.session_id, t.ordinal, t.turn_id, t.parent_turn_id, t.token_source, w.value AS reward, f.correction,
           CASE WHEN :text THEN t.messages END AS messages, CASE WHEN :text THEN t.tools END AS tools,
           CASE WHEN :text THEN t.response END AS response,
           c.logprobs AS teacher_logprobs, c.top_k, c.topk_ids, c.topk_logprobs, c.hinted_prompt_ids,
           c.student_k, c.student_ids, c.student_logprobs
    FROM samples s
    JOIN turns t ON t.turn_id = s.turn_id
    LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
    LEFT JOIN teacher_scores c ON c.run = s.run AND c.turn_id = s.turn_id
    LEFT JOIN feedback f ON f.feedback_id = s.feedback_id
    WHERE s.micro_batch_id = :micro_batch
    ORDER BY s.position
    """
)

_ROW = text(
    "SELECT b.state, b.digest, r.recipe FROM micro_batches b JOIN runs r ON r.run = b.run "
    "WHERE b.micro_batch_id = :micro_batch"
)

_EARLIER = text(
    """
    SELECT s.sample_id, w.value AS reward
    FROM micro_batches here
    JOIN samples s ON s.micro_batch_id = here.micro_batch_id
    JOIN turns t ON t.turn_id = s.turn_id
    JOIN turns before ON before.session_id = t.session_id AND before.ordinal < t.ordinal
    JOIN samples e ON e.run = s.run AND e.turn_id = before.turn_id
    JOIN micro_batches b ON b.micro_batch_id = e.micro_batch_id AND b.seq <= here.seq
    LEFT JOIN rewards w ON w.run = e.run AND w.turn_id = e.turn_id
    WHERE here.micro_batch_id = :micro_batch
    ORDER BY s.position, before.ordinal, before.turn_id
    """
)
"""Only what is in micro-batches up to this one: those rewards are final, so the same micro-batch always finds the same,
whatever was judged meanwhile."""


def load_batch(
    connection: Connection, message: MicroBatchPublished, chat: ChatTokens | None = None
) -> list[Loaded] | None:
    """The samples of a micro-batch in its order; None where it is consumed already. `chat` makes the tokens of turns
    that are known as text, for recipes that train such.

    Raises:
        LearnerStopped: it is not in the database, or holds other samples, another order or other content than
            announced. It is held, not trained.
    """
    named = {"micro_batch": message.micro_batch_id}
    batch = connection.execute(_ROW, named).one_or_none()
    if batch is None:
        raise LearnerStopped(
            f"{_name(message)} is on the log and not in the database: topic and database do not belong together"
        )
    if batch.state == "consumed":
        return None
    needs = needs_of(recipe_from_dict(batch.recipe))
    rows = connection.execute(_CONTENT, named | {"text": needs.text}).all()
    if [row.sample_id for row in rows] != message.sample_ids:
        raise LearnerStopped(
            f"{_name(message)} holds {len(rows)} samples in the database and {len(message.sample_ids)} as announced, "
            "or in another order; it is held. Look at samples.micro_batch_id and samples.position"
        )
    unready = [row.sample_id for row in rows if row.state != "batched"]
    if unready:
        raise LearnerStopped(
            f"{_name(message)}: {len(unready)} samples are not batched, first {unready[0]}; it is held"
        )
    loaded = _loaded(connection, message.micro_batch_id, needs, rows, chat)
    if not batch.digest == message.digest == batch_digest(row.content_digest for row in rows):
        raise LearnerStopped(f"{_name(message)} has another digest in the database than announced; it is held")
    return loaded


def load_trained(connection: Connection, micro_batch_id: str, chat: ChatTokens | None = None) -> list[TrainingSample]:
    """The samples that a consumed micro-batch trained, in its order: what its weight version was made of.

    Raises:
        LearnerStopped: one was changed since.
    """
    named = {"micro_batch": micro_batch_id}
    needs = needs_of(recipe_from_dict(connection.execute(_ROW, named).one().recipe))
    rows = connection.execute(_CONTENT, named | {"text": needs.text}).all()
    loaded = _loaded(connection, micro_batch_id, needs, [row for row in rows if row.state == "trained"], chat)
    for one in loaded:
        if one.unusable is not None and one.unusable.reason == "erased":
            raise LearnerStopped(f"sample {one.sample.sample_id} was trained and then erased on request")
        if one.unusable is not None:
            raise LearnerStopped(
                f"sample {one.sample.sample_id} was trained and now has no tokens: {one.unusable.detail}. Put the "
                "tokenizer and the chat template of version 0 back as they were"
            )
    return [one.sample for one in loaded]


def why_not(one: Loaded, *, policy: str, version: int, bound: int) -> Drop | None:
    """Why a sample must not be used by weights of `version`; None where it may.

    Staleness is `version` minus the oldest version among its tokens; `bound` versions are allowed, 0 means the same
    version only.
    """
    if one.unusable is not None:
        return one.unusable
    if not (one.replayed or one.timeless) and (old := _too_old(one, policy, version, bound)) is not None:
        return old
    try:
        one.sample.check()
    except InvalidSample as err:
        return Drop(err.reason if err.reason in DROP_REASONS else "hint_failed", str(err))
    return None


def _too_old(one: Loaded, policy: str, version: int, bound: int) -> Drop | None:
    if one.policy != policy:
        return Drop(
            "unknown_version", f"answered by policy {one.policy!r}, so its version says nothing about {policy!r}"
        )
    if one.oldest_version is None:
        return Drop("unknown_version", "the server did not say which weight version made the tokens")
    staleness = version - one.oldest_version
    if staleness < 0:
        return Drop("unknown_version", f"its tokens name version {one.oldest_version}, and the newest is {version}")
    if staleness > bound:
        detail = f"oldest token by version {one.oldest_version}, weights in training {version}"
        return Drop("stale", f"{detail}: {staleness} behind, at most {bound} allowed")
    return None


def _loaded(
    connection: Connection, micro_batch_id: str, needs: Needs, rows: Sequence[Any], chat: ChatTokens | None
) -> list[Loaded]:
    """The samples of `rows`, each checked against its digest.

    Raises:
        LearnerStopped: one was changed since it became ready.
    """
    earlier: dict[str, list[float | None]] = {}
    if needs.session:
        for sample_id, reward in connection.execute(_EARLIER, {"micro_batch": micro_batch_id}):
            earlier.setdefault(sample_id, []).append(reward)
    pairs = pairs_of([row for row in rows if not row.erased]) if needs.pairs else {}
    return [_checked(row, needs, tuple(earlier.get(row.sample_id, ())), pairs.get(row.sample_id), chat) for row in rows]


def _checked(
    row: Any,
    needs: Needs,
    earlier: tuple[float | None, ...],
    pair: tuple[str, bool] | None,
    chat: ChatTokens | None,
) -> Loaded:
    if row.erased:
        return _erased(row)
    if sample_digest_of(row, needs) != row.content_digest:
        raise LearnerStopped(
            f"sample {row.sample_id} was changed after it became ready (its content digest is another); its "
            "micro-batch is held. Put the row back as it was, or drop the sample and its micro-batch"
        )
    taught = row.teacher_logprobs is not None
    topk_ids, topk_logprobs = _teacher_entries(row) if taught else (None, None)
    tokens = tokens_of(row, needs, chat)
    sample = TrainingSample(
        sample_id=row.sample_id,
        prompt_ids=tokens.prompt_ids,
        response_ids=tokens.response_ids,
        response_logprobs=tokens.logprobs,
        reward=row.reward,
        teacher_logprobs=unpack_floats(row.teacher_logprobs) if taught else None,
        teacher_topk_ids=topk_ids,
        teacher_topk_logprobs=topk_logprobs,
        hinted_prompt_ids=unpack_ids(row.hinted_prompt_ids) if taught and needs.hinted_prompt else None,
        truncated=row.finish_reason == "length",
        group_id=row.group_id,
        earlier_rewards=earlier,
        staleness=row.staleness,
        pair=pair,
        correction_ids=tokens.correction_ids,
    )
    unusable = None if tokens.fault is None else Drop(*tokens.fault)
    return Loaded(sample, row.policy, row.oldest_version, row.replayed, needs.text, unusable)


def _erased(row: Any) -> Loaded:
    """What is left of a sample whose session was erased after its micro-batch was published: nothing to train, always.
    Which samples a version was made of stays written down with them."""
    none = np.zeros(0, np.int32)
    sample = TrainingSample(sample_id=row.sample_id, prompt_ids=none, response_ids=none, response_logprobs=None)
    return Loaded(sample, row.policy, row.oldest_version, row.replayed, unusable=Drop("erased", DROP_REASONS["erased"]))


def _teacher_entries(row: Any) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and log-probs [T, K + J]: the teacher's K likeliest by rank, then the J that the policy named and the teacher
    scored, where they are not among those; an id of -1 stands for none."""
    ids, logprobs = (
        _by_token(unpack_ids(row.topk_ids), row.top_k),
        _by_token(unpack_floats(row.topk_logprobs), row.top_k),
    )
    if row.student_ids is None:
        return ids, logprobs
    named = _by_token(unpack_ids(row.student_ids), row.student_k)
    scores = _by_token(unpack_floats(row.student_logprobs), row.student_k)
    if not len(ids) == len(logprobs) == len(named) == len(scores):
        return named, scores  # of another length than the response: the sample's check says so
    there = (named[:, :, None] == ids[:, None, :]).any(axis=2)
    named = np.where(there | np.isnan(scores), np.int32(-1), named)
    return np.concatenate([ids, named], axis=1), np.concatenate([logprobs, scores], axis=1)


def _by_token(values: NDArray[Any], top_k: int) -> NDArray[Any]:
    """[T * K] as [T, K]. What is no whole number of tokens stays flat, and the sample's check refuses its length."""
    return values.reshape(-1, top_k) if len(values) % top_k == 0 else values


def _name(message: MicroBatchPublished) -> str:
    return f"micro-batch {message.seq} of run {message.run!r} ({message.micro_batch_id})"
