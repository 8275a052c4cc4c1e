"""What the rows around a Codex conversation say of it: header, context of a turn, events."""

from __future__ import annotations

from collections import Counter
from typing import Any

from producers.importers.content import text_field


def payload_of(row: dict[str, Any]) -> dict[str, Any]:
    """What the row holds; nothing where it has no object."""
    payload = row.get("payload")
    return payload if isinstance(payload, dict) else {}


def model_of(row: dict[str, Any]) -> str | None:
    """The model that a `turn_context` names."""
    return text_field(payload_of(row), "model") if row.get("type") == "turn_context" else None


def of_subagent(meta: dict[str, Any]) -> bool:
    """Whether a header says that the session is a subagent's."""
    source = meta.get("source")
    return isinstance(source, dict) and "subagent" in source


def instructions_of(meta: dict[str, Any]) -> str | None:
    """The system prompt that a header holds."""
    base = meta.get("base_instructions")
    return text_field(base, "text") if isinstance(base, dict) else text_field(meta, "base_instructions")


def exit_codes_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The exit code that Codex noted for a call, where its id names one command only."""
    ends = [
        event
        for row in rows
        if row.get("type") == "event_msg" and (event := payload_of(row)).get("type") == "exec_command_end"
    ]
    named = Counter(call_id for event in ends if (call_id := text_field(event, "call_id")) is not None)
    codes: dict[str, int] = {}
    for event in ends:
        call_id, code = text_field(event, "call_id"), event.get("exit_code")
        if call_id is not None and named[call_id] == 1 and type(code) is int and abs(code) < 1 << 31:
            codes[call_id] = code
    return codes
