"""What of each table is content, and what is left in its place. A test knows the class of every other column."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection

from schemas.states import DROP_REASONS

ERASED = "erased"
"""Close reason of the session, drop reason of its samples, and what stands where words were that cannot be NULL."""

TURNS = "(SELECT turn_id FROM turns WHERE session_id = %(session)s)"


@dataclass(frozen=True)
class Contents:
    """The content of one table. `rows`: which rows are a session's; `empty`: by column, what is left of it."""

    table: str
    rows: str
    empty: dict[str, str] = field(default_factory=dict)


_OF_TURNS = f"turn_id IN {TURNS}"
_OF_SESSION = f"(session_id = %(session)s OR {_OF_TURNS})"
_NOTHING = "'\\x'::bytea"

CONTENTS = (
    Contents(
        "votes",
        _OF_TURNS,
        {
            "annotator": f"CASE WHEN annotator_kind = 'HUMAN' THEN '{ERASED}' ELSE annotator END",
            "explanation": "NULL",
            "raw": "NULL",
        },
    ),
    Contents("rewards", _OF_TURNS, {"explanation": "NULL"}),
    Contents("hints", _OF_TURNS, {"text": "CASE WHEN status = 'accepted' THEN '' END", "reason": "NULL"}),
    Contents(
        "teacher_scores",
        _OF_TURNS,
        {
            **dict.fromkeys(("hinted_prompt_ids", "logprobs", "topk_ids", "topk_logprobs"), _NOTHING),
            "student_ids": f"CASE WHEN student_ids IS NOT NULL THEN {_NOTHING} END",
            "student_logprobs": f"CASE WHEN student_logprobs IS NOT NULL THEN {_NOTHING} END",
        },
    ),
    # A fault in words may quote what was said.
    Contents("samples", _OF_TURNS, {"drop_detail": f"CASE WHEN drop_reason = '{ERASED}' THEN %(detail)s::text END"}),
    Contents(
        "evaluations", _OF_TURNS, {"reason": f"CASE WHEN state = 'failed' OR reason = '{ERASED}' THEN '{ERASED}' END"}
    ),
    Contents(
        "next_states",
        _OF_SESSION,
        {
            **dict.fromkeys(("role", "content", "tool_call_id", "observed_at", "origin", "raw"), "NULL"),
            "unknown": "'{}'::jsonb",
        },
    ),
    Contents(
        "feedback",
        _OF_SESSION,
        {**dict.fromkeys(("correction", "author", "given_at", "raw"), "NULL"), "unknown": "'{}'::jsonb"},
    ),
    Contents(
        "turns",
        "session_id = %(session)s",
        {
            **dict.fromkeys(("messages", "tools"), "'[]'::jsonb"),
            **dict.fromkeys(("sampling", "unknown"), "'{}'::jsonb"),
            "response": """'{"content": null, "reasoning": null, "tool_calls": []}'::jsonb""",
            **dict.fromkeys(("prompt_ids", "response_ids", "response_logprobs"), _NOTHING),
            **dict.fromkeys(("started_at", "ended_at", "origin", "raw", "user_digest"), "NULL"),
            "erased_at": "coalesce(erased_at, now())",
        },
    ),
)
"""In an order in which no table loses what the rows of a later one are found by."""


def count(connection: Connection, contents: Contents, session_id: str) -> int:
    """Rows that still hold content."""
    found = connection.exec_driver_sql(
        f"SELECT count(*) FROM {contents.table} WHERE {_full(contents)}", _values(session_id)
    )
    return int(found.scalar_one())


def empty(connection: Connection, contents: Contents, session_id: str) -> int:
    """Empty the rows; returns how many held something."""
    assignments = ", ".join(f"{column} = {left}" for column, left in contents.empty.items())
    return connection.exec_driver_sql(
        f"UPDATE {contents.table} SET {assignments} WHERE {_full(contents)}", _values(session_id)
    ).rowcount


def _full(contents: Contents) -> str:
    differs = " OR ".join(f"{column} IS DISTINCT FROM ({left})" for column, left in contents.empty.items())
    return f"{contents.rows} AND ({differs})"


def _values(session_id: str) -> dict[str, str]:
    return {"session": session_id, "detail": DROP_REASONS[ERASED]}
