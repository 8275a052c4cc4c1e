"""Every noun of Hindstream's event log, one struct an event version.

An event says that something happened; it is never changed. `turn.recorded` and `next_state.observed` carry the
conversation, `feedback.given` an explicit judgement, `session.closed` the promise that no more turns follow.
Fields are only ever added, always with a default. How a struct travels on Kafka is `schemas.envelope`'s subject.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

TurnKind = Literal["main", "side"]
FinishReason = Literal["stop", "length", "tool_calls", "aborted", "error"]
TokenSource = Literal["engine", "retokenised", "none"]
NextStateKind = Literal["user_reply", "tool_result", "terminal_output", "gui_change", "test_verdict"]
CloseReason = Literal["done", "idle", "erased"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a response; `arguments` is the raw string, never parsed and printed again."""

    id: str | None
    name: str
    arguments: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy answered."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = []


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Response tokens `[start, end)` were made by weight version `version`; None where the server did not say."""

    version: int | None
    start: int
    end: int


class PolicyRef(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered: the policy's name and the weight version of each span of response tokens."""

    name: str
    spans: list[VersionSpan] = []


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of prompt and response, and the log-prob of each response token as it was sampled.

    `source` is `engine` where the ids and log-probs are the engine's own, `retokenised` where text was tokenised
    again (then there are no log-probs), `none` where there are no ids at all. A log-prob that is no finite number is
    None: JSON has neither NaN nor infinity, so that is what a producer that has one writes.
    """

    source: TokenSource = "none"
    prompt_ids: list[int] = []
    response_ids: list[int] = []
    response_logprobs: list[float | None] = []


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where an imported event stood: format name, file name (no directory), 1-based line or entry."""

    format: str
    file: str
    line: int


class TurnRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """`hindstream.turn.recorded.v1`: the policy answered once.

    `next_state_ids` are the next states of `parent_turn_id` that this turn's request carried: the parent is
    complete when this turn and all of those are recorded, in whatever order they arrive. `tenant` is whose key asked;
    None where no key was needed. `redacted`: text was replaced before it left the process that wrote the event, so
    there are no token ids, which would say it still. `user_digest` stands for the user that the request named
    (`schemas.digests.user_digest`).
    """

    session_id: str
    turn_id: str
    parent_turn_id: str | None = None
    ordinal: int
    kind: TurnKind = "main"
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    response: Response
    finish_reason: FinishReason
    policy: PolicyRef
    sampling: dict[str, Any] = {}
    tokens: Tokens = Tokens()
    group_id: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    origin: Origin | None = None
    next_state_ids: list[str] = []
    sanitised: bool = False
    raw: str | None = None
    tenant: str | None = None
    redacted: bool = False
    user_digest: str | None = None


class NextStateObserved(msgspec.Struct, frozen=True, kw_only=True):
    """`hindstream.next_state.observed.v1`: what answered a turn.

    `verdict` is the judgement of an environment in [0, 1] (a test suite's share, a benchmark's reward);
    `exit_code` is a process's. `observed_at` is the source's clock, ISO 8601, and orders nothing.
    """

    next_state_id: str
    session_id: str
    turn_id: str
    kind: NextStateKind
    ordinal: int = 0
    role: str | None = None
    content: str | None = None
    tool_call_id: str | None = None
    verdict: float | None = None
    exit_code: int | None = None
    observed_at: str | None = None
    origin: Origin | None = None
    sanitised: bool = False
    raw: str | None = None
    redacted: bool = False


class FeedbackGiven(msgspec.Struct, frozen=True, kw_only=True):
    """`hindstream.feedback.given.v1`: an explicit judgement of a turn, perhaps late. `score` is in [-1, 1]."""

    feedback_id: str
    session_id: str
    turn_id: str
    score: float | None = None
    thumbs: Literal["up", "down"] | None = None
    correction: str | None = None
    author: str | None = None
    given_at: str | None = None
    sanitised: bool = False
    raw: str | None = None
    redacted: bool = False


class SessionClosed(msgspec.Struct, frozen=True, kw_only=True):
    """`hindstream.session.closed.v1`: no more turns.

    `turns` and `next_states` say how many there are in the session where the source knows; the session then counts
    as closed only when that many are recorded, so that a closing event which overtakes them does no harm.
    """

    session_id: str
    reason: CloseReason = "done"
    turns: int | None = None
    next_states: int | None = None
    origin: Origin | None = None
    sanitised: bool = False
    raw: str | None = None


EventData = TurnRecorded | NextStateObserved | FeedbackGiven | SessionClosed

TURN_RECORDED = "hindstream.turn.recorded.v1"
NEXT_STATE_OBSERVED = "hindstream.next_state.observed.v1"
FEEDBACK_GIVEN = "hindstream.feedback.given.v1"
SESSION_CLOSED = "hindstream.session.closed.v1"

EVENT_TYPES: dict[str, type[EventData]] = {
    TURN_RECORDED: TurnRecorded,
    NEXT_STATE_OBSERVED: NextStateObserved,
    FEEDBACK_GIVEN: FeedbackGiven,
    SESSION_CLOSED: SessionClosed,
}
"""Every event version ever released and the struct that reads it."""

TYPE_OF: dict[type[EventData], str] = {struct: name for name, struct in EVENT_TYPES.items()}
"""The version that is written today for each struct."""
