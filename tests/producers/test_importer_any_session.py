"""Whatever a session file of an agent holds, its importer does not raise, and what it yields can be published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producers.importers import (
    Importer,
    claude_code,
    codex,
    openclaw,
    openhands_events,
    openhands_history,
    swe_agent_mini,
)
from producers.importers.detect import head_of
from tests.producers.test_importer_any_input import SHARED, anything, check, needs_files

SAMPLES: list[tuple[Importer, str]] = [
    (claude_code, "claude_code/sample_session.json"),
    (claude_code, "claude_code/cua_nmap_session.jsonl"),
    (openclaw, "openclaw_pi/large-session.head.jsonl"),
    (codex, "codex/function_calls.jsonl"),
    (openhands_history, "openhands/basic_gui_mode.json"),
    (openhands_events, "openhands/sdk_events.jsonl"),
]
many = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
own = st.sampled_from(["a", "b", "c"])


def likely(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of these fields, each there or not, of the right type or any other."""
    return st.fixed_dictionaries({}, optional={name: right | right | anything for name, right in fields.items()})


words = st.sampled_from(["go", "null", "[Request interrupted by user]", "<system-reminder>x</system-reminder>", ""])
part = likely(
    type=st.sampled_from(["text", "thinking", "tool_use", "tool_result", "toolCall", "image", "input_text"]),
    text=words,
    thinking=words,
    id=own,
    name=own,
    tool_use_id=own,
    content=words,
    input=st.just({}),
    arguments=st.just({}),
)
content = words | st.lists(part, max_size=3)
row = {
    "claude": likely(
        type=st.sampled_from(["user", "assistant", "system", "attachment"]),
        uuid=own,
        parentUuid=own,
        isSidechain=st.booleans(),
        isCompactSummary=st.booleans(),
        message=likely(id=own, content=content, model=own, stop_reason=st.just("end_turn")),
    ),
    "openclaw": likely(
        type=st.sampled_from(["message", "message", "compaction", "branch_summary", "session"]),
        id=own,
        parentId=own,
        summary=words,
        firstKeptEntryId=own,
        firstKeptEntryIndex=st.integers(-1, 4),
        message=likely(
            role=st.sampled_from(["user", "assistant", "toolResult", "bashExecution"]), content=content, toolCallId=own
        ),
    ),
    "codex": likely(
        type=st.sampled_from(["response_item", "response_item", "event_msg", "compacted", "session_meta"]),
        payload=likely(
            type=st.sampled_from(
                ["message", "reasoning", "function_call", "function_call_output", "turn_aborted", "thread_rolled_back"]
            ),
            role=st.sampled_from(["user", "assistant"]),
            content=content,
            name=own,
            call_id=own,
            output=content,
            arguments=words,
            num_turns=st.integers(-1, 3),
            message=words,
        ),
    ),
    "sdk": likely(
        kind=st.sampled_from(["ActionEvent", "MessageEvent", "ObservationEvent", "Condensation", "AgentErrorEvent"]),
        id=own,
        source=st.sampled_from(["agent", "user"]),
        thought=content,
        llm_message=likely(content=content),
        llm_response_id=own,
        tool_call=likely(id=own, name=own, arguments=words),
        tool_call_id=own,
        action_id=own,
        observation=likely(content=content, exit_code=st.integers(-1, 2)),
        forgotten_event_ids=st.lists(own, max_size=2),
        summary=words,
        summary_offset=st.integers(-1, 3),
    ),
    "history": likely(
        id=st.integers(0, 4),
        source=st.sampled_from(["agent", "user"]),
        action=st.sampled_from(["message", "run", "delegate", "condensation", "system"]),
        observation=st.sampled_from(["run", "null", "delegate"]),
        cause=st.integers(0, 4),
        content=words,
        args=likely(content=content, forgotten_event_ids=st.lists(st.integers(0, 4), max_size=2), summary=words),
    ),
    "mini": likely(
        role=st.sampled_from(["system", "user", "assistant", "tool", "exit"]),
        content=content,
        tool_calls=st.lists(likely(id=own, function=st.just({"name": "f", "arguments": "{}"})), max_size=2),
        tool_call_id=own,
        extra=likely(returncode=st.integers(-1, 2), interrupt_type=st.just("UserRejection")),
    ),
}


@pytest.mark.parametrize(
    ("importer", "name"),
    [(claude_code, "claude"), (openclaw, "openclaw"), (codex, "codex"), (openhands_events, "sdk")],
)
@given(data=st.data())
@many
def test_any_lines(tmp_path: Path, importer: Importer, name: str, data: st.DataObject) -> None:
    path = tmp_path / "any.jsonl"
    rows = data.draw(st.lists(row[name] | anything, max_size=8))
    path.write_text("".join(json.dumps(value) + "\n" for value in rows))
    importer.sniff(head_of(path))
    check(importer, path)


@given(st.lists(row["history"] | st.lists(row["history"], max_size=2) | anything, max_size=8), st.booleans())
@many
def test_any_history(tmp_path: Path, history: list[Any], around: bool) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps({"history": history} if around else history))
    openhands_history.sniff(head_of(path))
    check(openhands_history, path)


@given(likely(messages=st.lists(row["mini"] | anything, max_size=8), info=anything) | anything)
@many
def test_any_run(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps(run, indent=1))
    swe_agent_mini.sniff(head_of(path))
    check(swe_agent_mini, path)


@needs_files
@pytest.mark.parametrize(("importer", "file"), SAMPLES)
@given(at=st.floats(0, 1), cut=st.integers(0, 40), put=st.binary(max_size=8))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_session(tmp_path: Path, importer: Importer, file: str, at: float, cut: int, put: bytes) -> None:
    whole = (SHARED / file).read_bytes()[:60_000]
    where = int(at * len(whole))
    path = tmp_path / "damaged"
    path.write_bytes(whole[:where] + put + whole[where + cut :])
    check(importer, path)


@pytest.mark.parametrize("depth", [90, 120, 600, 5000])
def test_deep_nesting_is_read_or_refused(tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    texts = {
        claude_code: '{"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "f", '
        '"input": DEEP}]}}',
        openclaw: '{"type": "message", "message": {"role": "assistant", "content": [{"type": "toolCall", "name": "f", '
        '"arguments": DEEP}]}}',
        codex: '{"type": "response_item", "payload": {"type": "tool_search_call", "arguments": DEEP}}',
        openhands_events: '{"kind": "ActionEvent", "tool_name": "f", "thought": [], "action": {"x": DEEP}}',
        openhands_history: '[{"source": "agent", "action": "run", "args": {"x": DEEP}}]',
        swe_agent_mini: '{"messages": [{"role": "assistant", "content": "a", "x": DEEP}], "info": {"config": DEEP}}',
    }
    path = tmp_path / "deep"
    for importer, text in texts.items():
        path.write_text(text.replace("DEEP", deep))
        check(importer, path)


def test_a_long_conversation_takes_no_recursion(tmp_path: Path) -> None:
    """5,000 rows in one chain, the answer at its end."""
    rows = [
        {
            "type": "message",
            "id": str(n),
            "parentId": str(n - 1) if n else None,
            "message": {"role": "user", "content": "x"},
        }
        for n in range(5_000)
    ]
    rows.append({"type": "message", "id": "end", "parentId": "4999", "message": {"role": "assistant", "content": "y"}})
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in rows))
    check(openclaw, path)
