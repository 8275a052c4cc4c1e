"""Facts as rows: what each event becomes in its table. Pure, so a row that cannot be made is found before any SQL."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from processors.trainable import versions
from schemas.arrays import pack_floats, pack_ids
from schemas.envelope import Event
from schemas.events import FeedbackGiven, NextStateObserved, TurnRecorded

Row = dict[str, Any]


def turn_row(event: Event, turn: TurnRecorded) -> Row:
    """The row of `turns`.

    Raises:
        OverflowError: a token id does not fit into 32 bits.
    """
    oldest, newest = versions(turn.policy.spans)
    with np.errstate(over="ignore"):  # a log-prob beyond float32 becomes infinite, and the turn is dropped for it
        logprobs = pack_floats(turn.tokens.response_logprobs)
    latency, skew = latency_ms(turn.started_at, turn.ended_at)
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "parent_turn_id": turn.parent_turn_id,
        "ordinal": turn.ordinal,
        "kind": turn.kind,
        "messages": turn.messages,
        "tools": turn.tools,
        "response": msgspec.to_builtins(turn.response),
        "finish_reason": turn.finish_reason,
        "policy": turn.policy.name,
        "version_spans": msgspec.to_builtins(turn.policy.spans),
        "oldest_version": oldest,
        "newest_version": newest,
        "sampling": turn.sampling,
        "token_source": turn.tokens.source,
        "prompt_ids": pack_ids(turn.tokens.prompt_ids),
        "response_ids": pack_ids(turn.tokens.response_ids),
        "response_logprobs": logprobs,
        "prompt_tokens": len(turn.tokens.prompt_ids),
        "response_tokens": len(turn.tokens.response_ids),
        "group_id": turn.group_id,
        "next_state_ids": turn.next_state_ids,
        "started_at": turn.started_at,
        "ended_at": turn.ended_at,
        "latency_ms": latency,
        "clock_skew": skew,
        "origin": _origin(turn),
        "tenant": turn.tenant,
        "user_digest": turn.user_digest,
        **_common(event, turn),
    }


def next_state_row(event: Event, state: NextStateObserved) -> Row:
    """The row of `next_states`."""
    return {
        "next_state_id": state.next_state_id,
        "session_id": state.session_id,
        "turn_id": state.turn_id,
        "kind": state.kind,
        "ordinal": state.ordinal,
        "role": state.role,
        "content": state.content,
        "tool_call_id": state.tool_call_id,
        "verdict": state.verdict,
        "exit_code": state.exit_code,
        "observed_at": state.observed_at,
        "origin": _origin(state),
        **_common(event, state),
    }


def feedback_row(event: Event, given: FeedbackGiven) -> Row:
    """The row of `feedback`."""
    return {
        "feedback_id": given.feedback_id,
        "session_id": given.session_id,
        "turn_id": given.turn_id,
        "score": given.score,
        "thumbs": given.thumbs,
        "correction": given.correction,
        "author": given.author,
        "given_at": given.given_at,
        **_common(event, given),
    }


def latency_ms(started_at: str | None, ended_at: str | None) -> tuple[float | None, bool]:
    """Milliseconds from start to end, and whether the source's clock ran backwards (then 0.0).

    None where a time is missing or is no ISO 8601; a time without an offset is taken as UTC.
    """
    start, end = _time(started_at), _time(ended_at)
    if start is None or end is None:
        return None, False
    milliseconds = (end - start).total_seconds() * 1000.0
    return (milliseconds, False) if milliseconds >= 0 else (0.0, True)


def _time(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:  # not ISO 8601; the text itself is kept as it came
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _origin(data: TurnRecorded | NextStateObserved) -> Any:
    return None if data.origin is None else msgspec.to_builtins(data.origin)


def _common(event: Event, data: TurnRecorded | NextStateObserved | FeedbackGiven) -> Row:
    return {
        "unknown": event.unknown,
        "sanitised": data.sanitised,
        "raw": _raw(data.raw),
        "redacted": data.redacted,
    }


def _raw(raw: str | None) -> bytes | None:
    """The original's bytes; what another producer put there in another form is kept as it is."""
    if raw is None:
        return None
    try:
        return base64.b64decode(raw, validate=True)
    except (binascii.Error, ValueError):
        return raw.encode("utf-8")
