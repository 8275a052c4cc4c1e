"""Whatever rows a file of these formats holds, reading it does not raise, and what it gives can be published."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producers.importers import (
    Importer,
    asciicast,
    langfuse,
    langsmith,
    openai_finetuning,
    opencua,
    osworld,
    otel_genai,
    sharegpt,
    webarena,
)
from tests.producers.imported import Imported

SAMPLES = [
    (asciicast, "asciicast/text-group-input.cast"),
    (langfuse, "langfuse/microsoft-agent-2025-12-17.trace.json"),
    (langfuse, "langfuse/openai-agents-2025-09-30.trace.json"),
    (langsmith, "langsmith/anthropic_managed_custom_tools.jsonl"),
    (opencua, "opencua/agentnetbench_s_df0fd37049f470c2.json"),
    (webarena, "webarena/verified_108_network.docs.har"),
]
some = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
seeds = st.integers(0, 2**32)  # drawing rows one field at a time through hypothesis takes twenty times as long


class As:
    """A value as JSON within a string, half of the time."""

    def __init__(self, form: Any) -> None:
        self.form = form


ANY, TEXT = object(), object()
JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**70,
    10**400,
    1e308,
    float("nan"),
    "",
    "null",
    "a",
    "\x00\ud800",
    '"[1]"',
    [],
    {},
    ["a"],
    {"a": []},
]
WORDS = ["", "a", "b", "null", "\x00", "\ud800\n", "[", '"{}"', "up", "é"]


def like(form: Any, chance: random.Random) -> Any:
    """A value of a form: a dict is an object with some of these fields, a list has items like its own, of a tuple one
    is taken; now and then it is something else altogether."""
    if form is ANY or chance.random() < 0.08:
        return chance.choice(JUNK) if chance.random() < 0.7 else [like(ANY, chance), {"type": like(ANY, chance)}]
    if form is TEXT:
        return chance.choice(WORDS)
    if isinstance(form, As):
        value = like(form.form, chance)
        return json.dumps(value) if chance.random() < 0.5 else value
    if isinstance(form, dict):
        return {key: like(inner, chance) for key, inner in form.items() if chance.random() < 0.85}
    if isinstance(form, list):
        return [like(form[0], chance) for _ in range(chance.randrange(4))]
    if isinstance(form, tuple):
        return like(chance.choice(form), chance)
    return form


ID = ("a", "b")
WHEN = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01+00:00", "0")
BLOCK = {
    "type": ("text", "tool_use", "tool_result", "tool_call", "tool_call_response", "reasoning", "image"),
    **dict.fromkeys(("text", "content"), TEXT),
    **dict.fromkeys(("input", "arguments", "response"), ANY),
    **dict.fromkeys(("id", "tool_use_id"), ID),
    "name": "f",
}
CALL = {"id": ID, "name": "f", "args": ANY, "function": {"name": "f", "arguments": "{}"}}
MESSAGE = {
    "role": ("system", "user", "assistant", "tool"),
    "type": ("human", "ai", "function_call", "function_call_output", "message", "reasoning"),
    "content": (TEXT, [BLOCK]),
    "parts": [BLOCK],
    "tool_calls": [CALL],
    **dict.fromkeys(("tool_call_id", "call_id"), ID),
    "name": "f",
    "arguments": "{}",
    "output": TEXT,
    "kwargs": {"content": "c", "tool_call_id": "a"},
    "weight": (0, 1),
    "finish_reason": ("stop", "length"),
}
CHAT = {"role": ("user", "assistant", "assistant", "tool"), "content": TEXT, "tool_calls": [CALL], "tool_call_id": ID}
REQUEST = As(([CHAT], [MESSAGE], {"messages": [CHAT], "tools": [ANY]}))
RESPONSE = As((CHAT, {"choices": [{"message": CHAT}], "output": [MESSAGE], "generations": [[MESSAGE]]}))
OBSERVATION = {
    **dict.fromkeys(("id", "traceId", "parentObservationId"), ID),
    "type": ("GENERATION", "GENERATION", "TOOL", "SPAN"),
    **dict.fromkeys(("startTime", "updatedAt"), WHEN),
    "input": REQUEST,
    "output": RESPONSE,
    "name": "f",
    "level": ("ERROR", None),
    "metadata": ANY,
}
SCORE = {
    **dict.fromkeys(("id", "observationId", "traceId"), ID),
    "name": ("n", "toxicity"),
    "value": (0.5, 1, True, -0.5, 7),
    "stringValue": TEXT,
    "source": ("EVAL", "ANNOTATION", "API"),
    "dataType": ("NUMERIC", "BOOLEAN", "CATEGORICAL", "CORRECTION"),
}
TRACE = {"id": ID, "timestamp": WHEN, "observations": [OBSERVATION], "scores": [SCORE], "sessionId": ID}
RUN = {
    **dict.fromkeys(("id", "trace_id", "parent_run_id"), ID),
    "run_type": ("llm", "llm", "tool", "chain"),
    "dotted_order": "20260101T000000000000Za",
    "inputs": {"messages": ([CHAT], [[MESSAGE]]), "input": ANY},
    "outputs": RESPONSE,
    "error": TEXT,
    "extra": {"metadata": {"thread_id": ID}, "invocation_params": ANY},
    "feedback_stats": {"user_score": {"avg": (0.5, 2.0), "comments": [TEXT]}, "correct": {"avg": 1}},
}
EVENT = {
    "type": ("agent.message", "agent.custom_tool_use", "agent.tool_result", "user.message", "span.model_request_end"),
    **dict.fromkeys(("id", "custom_tool_use_id", "tool_use_id"), ID),
    "name": "f",
    "input": ANY,
    "content": (TEXT, [BLOCK]),
}
STREAM = "client.beta.sessions."
ATTRIBUTE = (
    {"key": "gen_ai.operation.name", "value": {"stringValue": ("chat", "chat", "execute_tool")}},
    {"key": "gen_ai.input.messages", "value": {"stringValue": REQUEST}},
    {"key": "gen_ai.output.messages", "value": {"stringValue": RESPONSE, "arrayValue": ANY}},
    {"key": ("gen_ai.tool.call.id", "gen_ai.tool.call.result"), "value": {"stringValue": TEXT, "intValue": ANY}},
)
SPAN = {
    **dict.fromkeys(("traceId", "spanId", "parentSpanId"), ID),
    "startTimeUnixNano": ("1", 2),
    "attributes": [ATTRIBUTE],
    "events": [{"name": "gen_ai.evaluation.result", "attributes": [ATTRIBUTE], "timeUnixNano": ANY}],
    "status": {"code": 2},
}
RECORD = {"traceId": ID, "spanId": ID, "eventName": "gen_ai.evaluation.result", "attributes": [ATTRIBUTE]}
OTLP = {
    "resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}],
    "resourceLogs": [{"scopeLogs": [{"logRecords": [RECORD]}]}],
}
TURN = {"from": ("human", "gpt", "gpt", "function_call", "observation"), "value": (TEXT, "{}", '{"name": "f"}')}
ENTRY = {"conversations": [TURN], "chosen": TURN, "rejected": TURN, "tools": "[]", "system": TEXT, "label": True}
EXAMPLE = (
    {"messages": [CHAT], "tools": ANY},
    {"messages": [MESSAGE]},
    {"input": {"messages": [CHAT]}, "preferred_output": [CHAT], "non_preferred_output": [CHAT]},
)
SAID = {
    **dict.fromkeys(("observation", "thought", "low_level_instruction", "code"), TEXT),
    "last_step_correct": (True, False),
}
STEP = {"step_num": (1, 2), "image": "p.png", "action": "f()", "milestone": (True, False), "inner_monologue": SAID}
TASK = {"steps": [STEP], "traj": [STEP | {"value": SAID}], "instruction": TEXT, "task_completed": (True, False)}
ACTION = {"step_num": (1, 2), "action": (TEXT, {"a": 1}), "response": TEXT, "screenshot_file": "s.png", "info": ANY}
KEY = [(0.5, 3, "i", "o", "m", "ls\r", "\r\n")]
EXCHANGE = {
    "startedDateTime": WHEN,
    "request": {"method": "GET", "url": ("http://x/", "http://x/b", "http://[", TEXT), "headers": ANY},
    "response": {
        "status": (200, 302),
        "redirectURL": ("/b", "http://["),
        "headers": ANY,
        "content": {"mimeType": ("text/html", "application/json"), "text": TEXT},
    },
}

LINES = [
    (langfuse, (TRACE, OBSERVATION, SCORE)),
    (langsmith, RUN),
    (otel_genai, OTLP),
    (sharegpt, ENTRY),
    (openai_finetuning, EXAMPLE),
    (opencua, TASK),
    (osworld, ACTION),
    (asciicast, ({"version": 2, "width": 1, "timestamp": 1e9}, {"version": 3, "term": {}}, KEY, KEY)),
]
WHOLE = [
    (langfuse, {"trace": TRACE, "observations": [OBSERVATION]}),
    (langfuse, [TRACE]),
    (langsmith, [RUN]),
    (otel_genai, OTLP),
    (sharegpt, [ENTRY]),
    (opencua, TASK),
    (webarena, {"log": {"version": TEXT, "entries": [EXCHANGE]}}),
]


def name_of(importer: Any) -> str | None:
    return getattr(importer, "NAME", "rows")


def check(importer: Importer, path: Path) -> None:
    found = Imported(importer, path)
    lines = path.read_bytes().count(b"\n") + 1
    assert all(1 <= one.line <= lines for one in found.refused)
    origins = [*(turn.origin for turn in found.turns), *(state.origin for state in found.states)]
    assert all(origin is not None and 1 <= origin.line <= lines for origin in origins)
    nothing = path.read_bytes().strip() in (b"[]", b"")
    assert found.events or found.refused or nothing


@pytest.mark.parametrize(("importer", "form"), LINES, ids=name_of)
@given(seed=seeds)
@some
def test_any_lines(tmp_path: Path, importer: Importer, form: Any, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "any.jsonl"
    path.write_text("".join(json.dumps(like(form, chance)) + "\n" for _ in range(chance.randint(1, 5))))
    check(importer, path)


@given(seed=seeds)
@some
def test_any_stream_of_events(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows = [[STREAM + "create", {"id": "s", "agent": like({"system": TEXT, "model": ANY, "tools": [ANY]}, chance)}]]
    for _ in range(6):
        rows.append([STREAM + "events.stream", like(EVENT, chance)])
        rows.append([STREAM + "events.send", [like(ID, chance)]])
    path = tmp_path / "any.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    check(langsmith, path)


@pytest.mark.parametrize(("importer", "form"), WHOLE, ids=name_of)
@given(seed=seeds)
@some
def test_any_file(tmp_path: Path, importer: Importer, form: Any, seed: int) -> None:
    path = tmp_path / "network.har"
    path.write_text(json.dumps(like(form, random.Random(seed)), indent=1))
    check(importer, path)


@pytest.mark.parametrize(("importer", "file"), SAMPLES, ids=name_of)
@given(at=st.floats(0, 1), cut=st.integers(0, 40), put=st.binary(max_size=8))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file(
    shared_dir: Path, tmp_path: Path, importer: Importer, file: str, at: float, cut: int, put: bytes
) -> None:
    whole = (shared_dir / "data" / file).read_bytes()
    where = int(at * len(whole))
    path = tmp_path / "damaged"
    path.write_bytes(whole[:where] + put + whole[where + cut :])
    check(importer, path)


DEEP = [
    (
        langfuse,
        '{"id": "t", "timestamp": "", "observations": [{"id": "o", "type": "GENERATION", "input": X, "output": X}]}',
    ),
    (langsmith, '{"id": "r", "run_type": "llm", "trace_id": "t", "inputs": {"messages": X}, "outputs": X}'),
    (
        langsmith,
        '["client.beta.sessions.events.stream", {"type": "agent.tool_use", "id": "a", "name": "f", "input": X}]',
    ),
    (
        otel_genai,
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "s", "attributes": X}]}]}]}',
    ),
    (sharegpt, '{"conversations": [{"from": "gpt", "value": "v", "x": X}], "tools": X}'),
    (openai_finetuning, '{"messages": [{"role": "assistant", "content": X}]}'),
    (opencua, '{"steps": [{"image": "i", "action": "a", "inner_monologue": {"x": X}}]}'),
    (osworld, '{"step_num": 1, "action": X, "done": false}'),
    (asciicast, '{"version": 2, "width": 1, "x": X}\n[1, "i", "a"]'),
    (webarena, '{"log": {"entries": [{"request": {"method": "G", "url": "u"}, "response": {"status": 200}, "x": X}]}}'),
]


@pytest.mark.parametrize(("importer", "form"), DEEP, ids=name_of)
@pytest.mark.parametrize("depth", [100, 450, 900, 980, 5000])
def test_deep_nesting_is_read_or_refused(tmp_path: Path, importer: Importer, form: str, depth: int) -> None:
    path = tmp_path / "network.har"
    for deep in ("[" * depth + "]" * depth, '{"message": ' * depth + "1" + "}" * depth):
        for value in (deep, json.dumps(deep)):
            path.write_text(form.replace("X", value) + "\n")
            check(importer, path)
