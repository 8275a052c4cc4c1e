"""OpenTelemetry's GenAI spans, samples of our own in the current conventions, as OTLP JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import otel_genai
from producers.importers.detect import Head
from tests.producers.imported import Imported, write_lines

Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes spans as one OTLP object and reads it."""

    def spans_read(*spans: Any, records: Any = ()) -> Imported:
        path = tmp_path / "traces.json"
        path.write_text(json.dumps(otlp(*spans) | {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}))
        return Imported(otel_genai, path)

    return spans_read


def otlp(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(one) for one in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes(value)}}
    return {"stringValue": value}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": any_value(value)} for key, value in values.items()]


def span(
    key: str, second: int, said: dict[str, Any], parent: str = "", trace: str = "t", **more: Any
) -> dict[str, Any]:
    start = 1_767_225_600 + second
    base = {"traceId": trace, "spanId": key, "parentSpanId": parent, "name": key}
    times = {"startTimeUnixNano": f"{start}000000000", "endTimeUnixNano": f"{start}500000000"}
    return base | times | {"attributes": attributes({f"gen_ai.{name}": value for name, value in said.items()})} | more


def message(role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)} | more


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def call(key: str, arguments: Any = None) -> dict[str, Any]:
    return {"type": "tool_call", "id": key, "name": "look", "arguments": arguments or {"a": 1}}


def response(key: str, gave: Any) -> dict[str, Any]:
    return {"type": "tool_call_response", "id": key, "response": gave}


def chat(key: str, second: int, sent: list[Any], *answers: Any, encode: bool = True, **more: Any) -> dict[str, Any]:
    plain = {"input.messages": sent, "output.messages": list(answers)}
    said: dict[str, Any] = {name: json.dumps(value) if encode else value for name, value in plain.items()}
    extra = {name.replace("__", "."): more.pop(name) for name in list(more) if "__" in name}
    return span(key, second, {"operation.name": "chat", "request.model": "m"} | said | extra, **more)


AGENT = {"operation.name": "invoke_agent"}
USER = message("user", words("q"))
CALLS = message("assistant", call("x"), finish_reason="tool_call")
SHOWN = message("tool", response("x", {"deg": 7}))
DONE = message("assistant", words("warm"), finish_reason="stop")


def test_a_trace_counted_by_hand(read: Read) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {}}]
    found = read(
        span("agent", 0, AGENT | {"conversation.id": "c", "output.messages": json.dumps([DONE])}),
        chat("2", 3, [USER, CALLS, SHOWN], DONE, parent="agent", response__model="m-1"),
        span("tool", 2, {"operation.name": "execute_tool", "tool.name": "look", "tool.call.id": "x"}, "agent"),
        chat("1", 1, [USER], CALLS, parent="agent", request__temperature=0.5, request__max_tokens=64,
             tool__definitions=json.dumps(tools)),
        span("http", 1, {}, "1"),
    )  # fmt: skip
    assert found.counts() == {
        "sessions": 1,
        "turns": 2,
        "next_states": {"tool_result": 1},
        "verdicts": 0,
        "refused": 0,
    }
    first, second = found.turns
    assert (first.policy.name, second.policy.name) == ("m", "m-1")
    assert first.sampling == {"temperature": 0.5, "max_tokens": 64}
    assert first.tools == tools
    assert first.response.tool_calls[0].arguments == '{"a":1}'
    assert [turn.finish_reason for turn in found.turns] == ["tool_calls", "stop"]
    assert found.states[0].content == '{"deg":7}'
    assert (first.started_at, first.ended_at) == ("2026-01-01T00:00:01+00:00", "2026-01-01T00:00:01.500000+00:00")
    assert found.parents() == [None, 0]


def test_structured_attributes_say_the_same_as_json_strings(read: Read) -> None:
    plain = read(chat("1", 1, [USER], CALLS, encode=False)).turns[0]
    encoded = read(chat("1", 1, [USER], CALLS)).turns[0]
    assert (plain.messages, plain.response) == (encoded.messages, encoded.response)


def test_system_instructions_and_reasoning(read: Read) -> None:
    thinking = message("assistant", {"type": "reasoning", "content": "hm"}, words("a"), finish_reason="length")
    found = read(chat("1", 1, [USER], thinking))
    assert found.turns[0].response.reasoning == "hm"
    assert found.turns[0].finish_reason == "length"
    system = span("2", 1, {
        "operation.name": "chat", "system_instructions": json.dumps([words("be brief")]),
        "input.messages": json.dumps([USER]), "output.messages": json.dumps([DONE]),
    })  # fmt: skip
    assert read(system).asked(0) == [("system", "be brief"), ("user", "q")]


def test_messages_in_events_and_log_records(read: Read) -> None:
    bare = {"operation.name": "chat"}
    details = "gen_ai.client.inference.operation.details"

    def carried(sent: list[Any], said: Any) -> list[dict[str, Any]]:
        return attributes({"gen_ai.input.messages": json.dumps(sent), "gen_ai.output.messages": json.dumps([said])})

    event = {"name": details, "timeUnixNano": "1", "attributes": carried([USER], CALLS)}
    record = {"eventName": details, "traceId": "T", "spanId": "2", "attributes": carried([USER, CALLS, SHOWN], DONE)}
    lost = record | {"spanId": "9"}
    found = read(span("1", 1, bare, events=[event]), span("2", 2, bare), records=[record, lost])
    assert found.answers() == [(None, ['{"deg":7}']), ("warm", [])]
    assert [one.reason for one in found.refused] == [f"the record {details} is of span 't/9', which is not in the file"]


def test_conversations_are_sessions(tmp_path: Path) -> None:
    again = message("user", words("and now?"))
    lines = [
        otlp(chat("2", 9, [USER, DONE, again], DONE, trace="u", conversation__id="c")),
        otlp(chat("1", 1, [USER], DONE, conversation__id="c"), span("0", 0, AGENT)),
        otlp(chat("3", 1, [USER], DONE, trace="v")),
    ]
    found = Imported(otel_genai, write_lines(tmp_path / "traces.jsonl", lines))
    assert [closed.turns for closed in found.closed] == [2, 1]
    assert found.answers() == [("warm", ["and now?"]), ("warm", []), ("warm", [])]
    assert [turn.origin.line for turn in found.turns if turn.origin] == [2, 1, 3]


def test_a_server_that_keeps_the_conversation(read: Read) -> None:
    found = read(chat("1", 1, [USER], CALLS), chat("2", 2, [SHOWN], DONE))
    assert found.parents() == [None, 0]
    assert [m["role"] for m in found.turns[1].messages] == ["user", "assistant", "tool"]


def test_tool_spans_for_results_that_no_request_shows(read: Read) -> None:
    two = message("assistant", call("x"), call("y", '{"b": 2}'), call("z"), finish_reason="tool_call")
    run = {"operation.name": "execute_tool", "tool.name": "look"}
    found = read(
        chat("1", 1, [USER], two),
        span("a", 2, run | {"tool.call.id": "x", "tool.call.result": "null"}),
        span("b", 3, run | {"tool.call.arguments": json.dumps({"b": 2}), "tool.call.result": json.dumps([1])}),
        span("c", 4, run | {"tool.call.id": "z"}),
        span("d", 5, run | {"tool.call.id": "?", "tool.name": "other", "tool.call.result": "r"}),
    )
    assert [(s.tool_call_id, s.content) for s in found.states] == [("x", "null"), ("y", "[1]")], "z never came back"
    assert [one.reason for one in found.refused] == ["the run of tool 'other': no answer asked for it"]


def test_failures_and_machine_text_in_a_user_row(read: Read) -> None:
    failed: dict[str, Any] = {"status": {"code": 2}}
    tool = {"operation.name": "execute_tool", "tool.name": "look", "tool.call.id": "x"}
    error: dict[str, Any] = {
        "attributes": [*attributes({f"gen_ai.{k}": v for k, v in tool.items()}), *attributes({"error.type": "Timeout"})]
    }
    said = span("2", 3, {"operation.name": "chat", "input.messages": json.dumps([USER])}, **failed)
    found = read(chat("1", 1, [USER], CALLS), span("t", 2, {}, **error), said)
    assert found.answers() == [(None, ["error: Timeout"]), (None, [])]
    assert [turn.finish_reason for turn in found.turns] == ["tool_calls", "error"]
    as_user = read(chat("1", 1, [USER], CALLS), chat("2", 2, [USER, CALLS, message("user", response("x", "7"))], DONE))
    assert [(s.kind, s.content) for s in as_user.states] == [("tool_result", "7")]


def test_evaluations_are_verdicts(read: Read) -> None:
    def evaluation(**values: Any) -> dict[str, Any]:
        said = {f"gen_ai.evaluation.{name.replace('__', '.')}": value for name, value in values.items()}
        return {
            "name": "gen_ai.evaluation.result",
            "timeUnixNano": "1767225700000000000",
            "attributes": attributes(said),
        }

    events = [
        evaluation(name="Relevance", score__value=0.5, explanation="half"),
        evaluation(name="Toxicity", score__value=1.0),
        evaluation(name="Style", score__label="formal"),
    ]
    found = read(chat("1", 1, [USER], DONE, events=events))
    assert [(s.kind, s.content, s.verdict) for s in found.states] == [
        ("test_verdict", "Relevance: 0.5 (half)", 0.5),
        ("test_verdict", "Toxicity: 1", 0.0),
        ("test_verdict", "Style: formal", None),
    ]


def test_candidates_wrappers_and_spans_exported_twice(read: Read) -> None:
    other = message("assistant", words("cold"), finish_reason="stop")
    found = read(
        chat("outer", 0, [USER], DONE),
        chat("inner", 1, [USER], DONE, other, parent="outer"),
        chat("inner", 1, [USER], DONE, other, parent="outer"),
    )
    assert [turn.response.content for turn in found.turns] == ["warm", "cold"]
    assert found.turns[0].group_id == found.turns[1].group_id is not None


def test_bad_spans_cost_themselves(tmp_path: Path) -> None:
    long = message("assistant", words("x" * 100_000), finish_reason="stop")
    path = write_lines(
        tmp_path / "traces.jsonl",
        [
            otlp(
                chat("1", 1, [USER], long),
                7,
                {"spanId": "2"},
                span("3", 2, {"operation.name": "chat", "prompt": "old"}),
            ),
            "{broken}",
            {"metrics": 1},
            otlp(chat("4", 1, [{"role": "narrator", "parts": []}], DONE)),
        ],
    )
    found = Imported(otel_genai, path)
    assert [(one.line, one.reason.split(":")[0]) for one in found.refused] == [
        (1, "a span is a JSON number, not an object"),
        (1, "a span without `spanId` or `traceId`"),
        (2, "not JSON at column 2"),
        (3, "is a JSON object without `resourceSpans`"),
        (1, "span t/3"),
        (4, "span t/4"),
    ]
    assert len(found.turns) == 1


def test_what_is_taken_for_one() -> None:
    assert otel_genai.sniff(Head("f", b'{"resourceSpans":[{"scopeSpans":[', False))
    assert otel_genai.sniff(Head("f", b'{"resourceLogs":[]}', True))
    assert not otel_genai.sniff(Head("f", b'{"resourceMetrics":[]}', True))
