"""What travels on the topics that the pipeline itself writes: micro-batches, weights, signals and dead letters."""

from __future__ import annotations

from typing import Literal

import msgspec

MICRO_BATCH_PUBLISHED = "hindstream.micro_batch.published.v1"
WEIGHTS_PUBLISHED = "hindstream.weights.published.v1"
SIGNAL_FINAL = "hindstream.signal.final.v1"
DEAD_LETTER_RECORDED = "hindstream.dead_letter.recorded.v1"


class MicroBatchPublished(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch: sample ids in training order and the digest of their content.

    `seq` counts the micro-batches of a run from 1 without a gap; `digest` is `schemas.digests.batch_digest` over
    the content digests of its samples in order, so that two runs can be compared byte for byte.
    """

    micro_batch_id: str
    run: str
    policy: str
    seq: int
    recipe_digest: str
    sample_ids: list[str]
    digest: str


class WeightsPublished(msgspec.Struct, frozen=True, kw_only=True):
    """One weight version that is whole on disk and committed. `manifest_sha256` names its manifest's content."""

    policy: str
    version: int
    parent_version: int | None
    run: str
    micro_batch_id: str | None
    path: str
    manifest_sha256: str
    recipe_digest: str


class SignalFinal(msgspec.Struct, frozen=True, kw_only=True):
    """A reward or hint that became final, for those who would rather stream than query."""

    run: str
    session_id: str
    turn_id: str
    signal: Literal["reward", "hint"]
    status: str
    value: float | None = None
    explanation: str | None = None
    annotator_kind: str | None = None
    text: str | None = None


class DeadLetterRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """A record that could not be recorded, with the fault. `key`, `value` and the headers' values are base64.

    Where the record is so large that base64 would not fit into a message, `value` is null and `headers` empty; the
    table `dead_letters` has both whole, under the same topic, partition and offset.
    """

    topic: str
    partition: int
    offset: int
    error_class: str
    error_message: str
    key: str | None = None
    headers: list[list[str]] = []
    value: str | None = None


Message = MicroBatchPublished | WeightsPublished | SignalFinal | DeadLetterRecorded

MESSAGE_TYPES: dict[str, type[Message]] = {
    MICRO_BATCH_PUBLISHED: MicroBatchPublished,
    WEIGHTS_PUBLISHED: WeightsPublished,
    SIGNAL_FINAL: SignalFinal,
    DEAD_LETTER_RECORDED: DeadLetterRecorded,
}

MESSAGE_TYPE_OF: dict[type[Message], str] = {struct: name for name, struct in MESSAGE_TYPES.items()}
