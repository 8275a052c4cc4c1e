"""Digests and deterministic ids: the same content gives the same name, on every machine and in every import."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from schemas.recipes.needs import Needs

_ID_HEX = 32
"""128 bits of SHA-256: with 10^9 ids a collision has odds of about 10^-21."""

_encoder = msgspec.json.Encoder(order="sorted")
_NUL = rb"\u0000"
"""Nothing else that Postgres or UTF-8 refuses can stand in JSON that was written."""


def canonical_json(value: Any) -> bytes:
    """JSON bytes with sorted keys and no spaces: equal values give equal bytes.

    Raises:
        ValueError: `value` holds a lone surrogate; pass it through `schemas.text.sanitise` first.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as err:
        raise ValueError(f"text cannot be written as UTF-8 ({err.reason}); sanitise it first") from err


def clean_json(value: Any) -> bytes | None:
    """Canonical JSON; None where there may be text to replace (`schemas.text`): also where it merely shows such an
    escape."""
    try:
        plain = canonical_json(value)
    except ValueError:  # a lone surrogate
        return None
    return None if _NUL in plain else plain


def sha256_hex(data: bytes) -> str:
    """Lower-case hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`."""
    return sha256_hex(canonical_json(value))


def content_id(prefix: str, *parts: str | int | None) -> str:
    """An id made of what the source cannot change, for example `content_id("turn", source, session, 3, "main")`.

    Parts are hashed as a JSON list, so ("ab", "c") and ("a", "bc") differ.
    """
    return f"{prefix}_{digest_of([prefix, *parts])[:_ID_HEX]}"


def turn_id(source: str, session_id: str, ordinal: int, kind: str, *more: str | int) -> str:
    """Id of a turn; `more` tells siblings of the same place apart (candidates, branches)."""
    return content_id("turn", source, session_id, ordinal, kind, *more)


def next_state_id(turn: str, kind: str, ordinal: int, *more: str | int) -> str:
    """Id of the `ordinal`-th next state of a turn."""
    return content_id("next", turn, kind, ordinal, *more)


def sample_id(run: str, turn: str) -> str:
    """Id of the sample that a run makes of a turn."""
    return content_id("sample", run, turn)


def user_digest(user: str, *, tenant: str | None = None, secret: str | None = None) -> str:
    """What stands for the user of a request on the log and in tables: enough to find what is theirs, and no name.

    Keyed by `secret` where there is one. Without, whoever guesses a user id can tell that it is this one. Equal names
    of two tenants are different users.
    """
    said = canonical_json(["user", tenant, user.encode("utf-8", "replace").decode()])
    return sha256_hex(said) if secret is None else hmac.new(secret.encode(), said, hashlib.sha256).hexdigest()


def batch_digest(sample_digests: Iterable[str]) -> str:
    """Digest of a micro-batch: over the content digests of its samples, in training order."""
    return digest_of(list(sample_digests))


def sample_digest(
    *,
    prompt_ids: bytes,
    response_ids: bytes,
    response_logprobs: bytes,
    reward: float | None,
    teacher_logprobs: bytes | None,
    topk_ids: bytes | None,
    topk_logprobs: bytes | None,
    more: dict[str, str | int | None] | None = None,
) -> str:
    """Digest of exactly what the learner trains on, arrays as `schemas.arrays` packs them. `more`: what only some
    recipes read.

    Set when a sample becomes ready, and computed again by the learner before it trains: a difference means that
    a row was changed in between.
    """
    arrays = (prompt_ids, response_ids, response_logprobs, teacher_logprobs, topk_ids, topk_logprobs)
    content = [reward, *(None if a is None else sha256_hex(a) for a in arrays)]
    return digest_of([*content, more] if more else content)


def prompt_digest(messages: Any, tools: Any) -> str:
    """Equal for turns that answered the same messages with the same tools."""
    return digest_of([messages, tools])


def siblings_key(row: Any) -> str:
    """Equal for answers that may be compared: candidates of one group, or else branches of one session at the same
    place, to the same messages. `row` has `group_id`, `session_id`, `parent_turn_id`, `messages` and `tools`."""
    place = [row.group_id] if row.group_id is not None else [row.session_id, row.parent_turn_id]
    return digest_of([*place, prompt_digest(row.messages, row.tools)])


def known_as_text(row: Any) -> bool:
    """Whether a turn has no ids that its engine gave. `row` has `token_source`, `prompt_ids` and `response_ids`."""
    return row.token_source != "engine" or not len(row.prompt_ids) or not len(row.response_ids)


def sample_digest_of(row: Any, needs: Needs) -> str:
    """The digest of a sample from its row: the arguments of `sample_digest` as attributes, and of `group_id`,
    `session_id`, `ordinal`, `hinted_prompt_ids`, text, siblings and correction what its recipe reads."""
    more: dict[str, str | int | None] = {}
    if needs.groups:
        more["group_id"] = row.group_id
    if needs.session:
        more |= {"session_id": row.session_id, "ordinal": row.ordinal}
    if needs.hinted_prompt:
        hinted = row.hinted_prompt_ids
        more["hinted_prompt_ids"] = None if hinted is None else sha256_hex(hinted)
    if needs.prompt_scores and row.teacher_logprobs is not None:
        more["scored_ids"] = sha256_hex(row.hinted_prompt_ids)
    if needs.student_scores and row.student_ids is not None:
        more["student_scores"] = sha256_hex(row.student_ids + row.student_logprobs)
    if needs.text and known_as_text(row):
        more["text"] = digest_of([row.messages, row.tools, row.response, row.finish_reason])
    if needs.pairs:
        more["siblings"] = siblings_key(row)
        more["correction"] = None if row.correction is None else digest_of(row.correction)
    return sample_digest(
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        response_logprobs=row.response_logprobs,
        reward=row.reward,
        teacher_logprobs=row.teacher_logprobs,
        topk_ids=row.topk_ids,
        topk_logprobs=row.topk_logprobs,
        more=more,
    )
