"""`/v1/feedback`: what people say of an answer, as an event of its turn."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from aiohttp import web

from producers.gateway.access.callers import caller_of, public
from producers.gateway.bodies import body_of
from producers.gateway.keys import DESK, RECORDER
from producers.gateway.receipts import Receipt
from producers.gateway.refusal import BadRequest, name_of
from producers.gateway.replying import told
from producers.gateway.sessions import SOURCE
from schemas.digests import content_id
from schemas.envelope import new_event, utc_now
from schemas.events import FeedbackGiven
from schemas.text import sanitise_text

_FIELDS = frozenset(
    {"turn_id", "answer_id", "session_id", "thumbs", "score", "correction", "reaction", "author", "given_at", "id"}
)
_JUDGEMENTS = ("thumbs", "score", "correction", "reaction")
_THUMBS = ("up", "down")
REACTIONS: dict[str, str] = {
    **dict.fromkeys(("👍", "❤", "🎉", "🚀", "🙏", "💯", "+1", "thumbsup", "heart"), "up"),
    **dict.fromkeys(("👎", "😕", "😠", "😡", "-1", "thumbsdown"), "down"),
}
"""What the reactions of chat platforms mean; any other is refused rather than guessed."""
_LOOKS = "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
"""Variation selector and skin tones: how an emoji looks, not what it says."""


async def feedback(request: web.Request) -> web.Response:
    """The handler: 200 when it is recorded (or waits in the spool), 503 when it is nowhere."""
    body = await body_of(request)
    given = _feedback(request, body)
    recorder = request.app[RECORDER]
    event = new_event(given, id=given.feedback_id, source=SOURCE, time=utc_now())
    recorded = await (recorder.submit([event]) if caller_of(request).recorded else recorder.skip())
    headers: dict[str, str] = {"X-Hindstream-Recorded": recorded}
    if recorded == "false":
        message = "the feedback is not recorded: the broker is away and the disk or the spool is full; send it again"
        return told(request, 503, {"message": message, "type": "server_error"}, headers)
    said = {
        "feedback_id": given.feedback_id,
        "turn_id": given.turn_id,
        "session_id": public(given.session_id),
        "recorded": recorded,
    }
    return web.json_response(said, headers=headers)


def _feedback(request: web.Request, body: dict[str, Any]) -> FeedbackGiven:
    unknown = sorted(body.keys() - _FIELDS)
    if unknown:
        raise BadRequest(f"{unknown[0][:80]}: no field of feedback; there are {', '.join(sorted(_FIELDS))}", unknown[0])
    if not any(body.get(name) is not None for name in _JUDGEMENTS):
        raise BadRequest(f"nothing is said of the turn: one of {', '.join(_JUDGEMENTS)} is needed", "thumbs")
    session_id, turn_id = _turn(request, body)
    thumbs, score = _thumbs(body), _score(body)
    correction = body.get("correction")
    if correction is not None and not (isinstance(correction, str) and correction.strip()):
        raise BadRequest("correction: the text that would have been right is needed", "correction")
    author, given_at, name = _name(body, "author"), _given_at(body), _name(body, "id")
    what = (name,) if name is not None else (thumbs, None if score is None else repr(score), correction, given_at)
    parts = [None if part is None else sanitise_text(part) for part in (session_id, turn_id, author, *what)]
    return FeedbackGiven(
        feedback_id=content_id("feedback", SOURCE, *parts),
        session_id=session_id,
        turn_id=turn_id,
        score=score,
        thumbs=thumbs,
        correction=correction,
        author=author,
        given_at=given_at,
    )


def _turn(request: web.Request, body: dict[str, Any]) -> tuple[str, str]:
    """Session (as on the log) and turn."""
    caller, receipts = caller_of(request), request.app[DESK].receipts
    turn_id, answer_id, session = (_name(body, field) for field in ("turn_id", "answer_id", "session_id"))
    if (turn_id is None) == (answer_id is None):
        raise BadRequest("turn_id or answer_id: one of them is needed, to say which turn is meant", "turn_id")
    found: Receipt | None = receipts.find(turn_id or answer_id or "")
    if found is not None and not caller.owns(found.session_id):
        found = None
    if answer_id is not None:
        if found is None:
            message = f"answer_id: {answer_id[:80]!r} is not among the newest answers of this gateway; give turn_id"
            raise BadRequest(message, "answer_id", status=404)
        if len(found.turn_ids) > 1:
            message = f"answer_id: the answer has several turns, give one as turn_id: {', '.join(found.turn_ids)}"
            raise BadRequest(message, "answer_id")
        turn_id = found.turn_ids[0]
    assert turn_id is not None
    if found is not None:
        return found.session_id, turn_id
    if session is None:
        message = "session_id: needed with a turn_id that is not among the newest of this gateway"
        raise BadRequest(message, "session_id")
    try:
        return caller.scoped(session), turn_id
    except ValueError as err:
        raise BadRequest(f"session_id: {err}", "session_id") from err


def _thumbs(body: dict[str, Any]) -> Any:
    thumbs, reaction = body.get("thumbs"), body.get("reaction")
    if reaction is not None:
        if thumbs is not None:
            raise BadRequest("reaction: thumbs are given already", "reaction")
        plain = str(reaction).strip().strip(":").translate({ord(sign): None for sign in _LOOKS})
        if plain not in REACTIONS:
            raise BadRequest(
                f"reaction: one of {' '.join(REACTIONS)} is needed; others say neither yes nor no", "reaction"
            )
        return REACTIONS[plain]
    if thumbs is not None and thumbs not in _THUMBS:
        raise BadRequest("thumbs: up or down", "thumbs")
    return thumbs


def _score(body: dict[str, Any]) -> float | None:
    score = body.get("score")
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score) or abs(score) > 1:
        raise BadRequest("score: a number from -1 (wrong) to 1 (right)", "score")
    return float(score)


def _given_at(body: dict[str, Any]) -> str | None:
    given_at = body.get("given_at")
    if given_at is None:
        return None
    try:
        moment = datetime.fromisoformat(given_at)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadRequest("given_at: a time in ISO 8601 with its offset, as 2026-05-01T12:00:00Z", "given_at")
    return str(given_at)


def _name(body: dict[str, Any], field: str) -> str | None:
    given = body.get(field)
    return None if given is None else name_of(given, field)
