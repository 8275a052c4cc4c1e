"""Langfuse: generations become a tree of turns whatever their order, and scores what their source makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import langfuse
from producers.importers.detect import Head
from tests.producers.imported import Imported, write_lines

AGENTS = "data/langfuse/openai-agents-2025-09-30.trace.json"
MICROSOFT = "data/langfuse/microsoft-agent-2025-12-17.trace.json"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes observations and scores as one trace's export and reads it."""

    def export_read(*observations: Any, scores: Any = (), **trace: Any) -> Imported:
        path = tmp_path / "trace.json"
        about = {"id": "t", "projectId": "p", "timestamp": "2026-01-01T00:00:00Z", "scores": list(scores)} | trace
        path.write_text(json.dumps({"trace": about, "observations": list(observations)}, indent=1))
        return Imported(langfuse, path)

    return export_read


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def calls(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return says(None, tool_calls=[{"id": one, "type": "function", "function": function} for one in ids])


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def generation(key: str, second: float, sent: Any, said: Any, **more: Any) -> dict[str, Any]:
    start = f"2026-01-01T00:00:{second:06.3f}Z"
    base = {"id": key, "traceId": "t", "type": "GENERATION", "startTime": start, "input": sent, "output": said}
    return base | {"model": "m", "parentObservationId": None} | more


def tool(key: str, second: float, given: Any, gave: Any, **more: Any) -> dict[str, Any]:
    return generation(key, second, given, gave) | {"type": "TOOL", "name": "look"} | more


def score(name: str, value: Any, source: str = "EVAL", **more: Any) -> dict[str, Any]:
    base = {"id": f"{name}-{source}", "name": name, "value": value, "source": source, "traceId": "t"}
    return base | {"timestamp": "2026-01-01T00:01:00Z", "dataType": "NUMERIC"} | more


@pytest.mark.parametrize(("file", "scores"), [(AGENTS, 2), (MICROSOFT, 3)])
def test_the_shared_files_counted_by_their_lines(shared_dir: Path, file: str, scores: int) -> None:
    found = Imported(langfuse, shared_dir / file)
    lines = (shared_dir / file).read_text().split("\n")
    # Observations stand twice in the file: within the trace (deeper, without input) and by themselves.
    depth = min(len(line) - len(line.lstrip()) for line in lines if line.lstrip().startswith('"type": "GENERATION"'))
    own = [line.strip() for line in lines if line.startswith(" " * depth + '"')]
    generations, tools = own.count('"type": "GENERATION",'), own.count('"type": "TOOL",')
    judged = sum(line.strip() == '"source": "EVAL",' for line in lines)
    assert (generations, tools, judged) == (2, 1, scores)
    assert found.counts() == {
        "sessions": 1,
        "turns": generations,
        "next_states": {"tool_result": tools, "test_verdict": judged},
        "verdicts": judged,
        "refused": 0,
    }
    assert not found.feedback


def test_the_shared_agents_trace(shared_dir: Path) -> None:
    found = Imported(langfuse, shared_dir / AGENTS)
    first, second = found.turns
    assert first.response.tool_calls[0].arguments == '{"city":"Tokyo"}'
    assert first.policy.name == "gpt-4.1-2025-04-14"
    assert first.sampling == {"temperature": 1, "top_p": 1}
    assert found.asked(0) == [("system", "You are a helpful agent."), ("user", "What's the weather in Tokyo?")]
    assert [tool["name"] for tool in first.tools] == ["get_weather"]
    assert found.states[0].content == "The weather in Tokyo is sunny."
    assert found.states[0].tool_call_id == first.response.tool_calls[0].id
    # In the file the second call stands first; the request, not the row, says who follows.
    assert first.origin is not None
    assert second.origin is not None
    assert first.origin.line > second.origin.line
    assert found.parents() == [None, 0]
    verdicts = {(state.content or "").split(":")[0]: state.verdict for state in found.states[1:]}
    assert verdicts == {"toxicity": 0.2, "hallucination": 1.0}, "of both, 1 is bad: 0.8 and 0 in the file"
    assert all(state.turn_id == second.turn_id for state in found.states[1:])


def test_the_shared_microsoft_trace(shared_dir: Path) -> None:
    found = Imported(langfuse, shared_dir / MICROSOFT)
    assert found.parents() == [None, 0], "the second request holds nothing but the result of the first one's call"
    assert [message["role"] for message in found.turns[1].messages] == ["user", "assistant", "tool"]
    verdicts = {(state.content or "").split(":")[0]: state.verdict for state in found.states[1:]}
    assert verdicts == {"correctness": 1.0, "toxicity": 1.0, "hallucination": 0.1}


def test_rows_in_any_order_with_any_clock_give_the_same_tree(read: Read, tmp_path: Path) -> None:
    one = generation("1", 5, [user("q")], calls("x"))
    two = generation("2", 4, [user("q"), calls("x"), result("x", "r")], says("a"))
    three = generation("3", 9, [user("q"), calls("x"), result("x", "r"), says("a"), user("more")], says("b"))
    found = read(three, two, one)
    assert found.parents() == [None, 0, 1]
    assert found.answers() == [(None, ["r"]), ("a", ["more"]), ("b", [])]
    ids = [event.id for event in found.events]
    assert ids == [event.id for event in read(one, two, three).events]
    assert ids == [
        event.id for event in Imported(langfuse, write_lines(tmp_path / "rows.jsonl", [two, three, one])).events
    ]


def test_parallel_calls_results_that_never_came_and_ids_that_repeat(read: Read) -> None:
    begin = [user("q"), calls("x", "y", "z")]
    again = [*begin, result("y", "2"), result("x", "null"), calls("x")]
    found = read(
        generation("1", 1, begin[:1], begin[1]),
        generation("2", 2, again[:4], again[4]),
        generation("3", 3, [*again, result("x", "3")], says("end")),
    )
    assert [(s.tool_call_id, s.content) for s in found.states] == [("y", "2"), ("x", "null"), ("x", "3")]
    assert [s.turn_id for s in found.states] == [found.turns[i].turn_id for i in (0, 0, 1)]


def test_a_tools_run_that_no_request_shows_is_a_result(read: Read) -> None:
    found = read(
        generation("1", 1, [user("q")], calls("x", arguments='{"a": 1, "b": 2}')),
        tool("t1", 2, {"b": 2, "a": 1}, "null"),
        tool("t2", 3, '{"a":9}', "nobody asked"),
        tool("t3", 4, {"a": 1, "b": 2}, None),
    )
    assert [(s.kind, s.content, s.tool_call_id) for s in found.states] == [("tool_result", "null", "x")]
    assert [one.reason for one in found.refused] == ["the run of tool 'look': no answer asked for it"]


def test_json_in_strings_and_arguments_that_are_encoded_twice(read: Read) -> None:
    said = json.dumps(json.dumps([{"role": "assistant", "parts": [
        {"type": "reasoning", "content": "hm"},
        {"type": "tool_call", "id": "x", "name": "look", "arguments": json.dumps(json.dumps({"a": 1}))},
    ]}]))  # fmt: skip
    found = read(generation("1", 1, json.dumps([user("q")]), said), tool("t", 2, json.dumps({"a": 1}), json.dumps("r")))
    assert found.turns[0].response.tool_calls[0].arguments == '{"a": 1}'
    assert found.turns[0].response.reasoning == "hm"
    assert found.states[0].content == "r"


@pytest.mark.parametrize(
    ("said", "content"),
    [
        ('{"city": "Tokyo", "n": 1}', '{"city": "Tokyo", "n": 1}'),
        ({"city": "Tokyo", "n": 1}, '{"city":"Tokyo","n":1}'),
        ('{"answer": "x"}', '{"answer": "x"}'),
        ({"completion": "x"}, "x"),
        ("[1, 2]", "[1, 2]"),
        ("null", "null"),
        ('"quoted"', '"quoted"'),
        ({"type": "text", "text": "x"}, "x"),
        ([{"type": "text", "text": "x"}, {"type": "text", "text": "y"}], "x\ny"),
    ],
)
def test_a_model_that_answers_in_json_of_its_own(read: Read, said: Any, content: str) -> None:
    asked = '{"find": "the city"}'
    found = read(generation("1", 1, asked, said))
    assert found.turns[0].response.content == content
    assert found.asked(0) == [("user", asked)]


def test_wrappers_and_own_judges_are_no_turns(read: Read) -> None:
    found = read(
        generation("agent", 0, [user("q")], says("a"), type="AGENT"),
        generation("outer", 1, [user("q")], says("a"), parentObservationId="agent"),
        generation("inner", 2, [user("q")], says("a"), parentObservationId="outer"),
        generation("judge", 3, [user("judge this")], says("1"), environment="langfuse-llm-as-a-judge"),
    )
    assert found.answers() == [("a", [])]
    assert found.turns[0].started_at == "2026-01-01T00:00:02.000Z"


def test_agents_that_talk_past_each_other_stay_apart(read: Read) -> None:
    found = read(
        generation("a1", 1, [user("plan")], calls("x")),
        generation("b1", 2, [user("search")], calls("y")),
        generation("a2", 3, [user("plan"), calls("x"), result("x", "1")], says("planned")),
        generation("b2", 4, [user("search"), calls("y"), result("y", "2")], says("found")),
    )
    assert found.parents() == [None, None, 0, 1]
    assert [states for _, states in found.answers()] == [["1"], ["2"], [], []]


def test_a_request_sent_again_is_a_branch_and_its_answers_are_told_once(read: Read) -> None:
    begin = [user("q"), calls("x"), result("x", "r")]
    found = read(
        generation("1", 1, begin[:1], begin[1]),
        generation("2", 2, begin, says("first try")),
        generation("3", 3, begin, says("second try")),
    )
    assert found.parents() == [None, 0, 0]
    assert [state.content for state in found.states] == ["r"]


def test_several_candidates_are_one_group(read: Read) -> None:
    said = {
        "choices": [{"message": says("a"), "finish_reason": "stop"}, {"message": says("b"), "finish_reason": "length"}]
    }
    found = read(
        generation("1", 1, [user("q")], said), generation("2", 2, [user("q"), says("b"), user("r")], says("c"))
    )
    assert [turn.finish_reason for turn in found.turns] == ["stop", "length", "stop"]
    assert found.parents() == [None, None, 1]
    assert found.turns[0].group_id == found.turns[1].group_id is not None
    assert found.turns[2].group_id is None


def test_scores_are_what_their_source_makes_them(read: Read) -> None:
    found = read(
        generation("1", 1, [user("q")], says("a")),
        generation("2", 2, [user("q"), says("a"), user("r")], says("b")),
        scores=[
            score("quality", 0.75, "ANNOTATION", observationId="1", authorUserId="ann"),
            score("user-feedback", -1, "API", observationId="1"),
            score("verdict", 1, "ANNOTATION", dataType="BOOLEAN"),
            score("mood", 0, "ANNOTATION", dataType="CATEGORICAL", stringValue="thumbs_down"),
            score("stars", 4, "ANNOTATION"),
            score("helpful", 0.5, "API"),
            score("length", 120),
            score("style", 0, dataType="CATEGORICAL", stringValue="formal"),
            score("fix", None, "ANNOTATION", dataType="CORRECTION", stringValue="b!", observationId="2"),
            score("quality", 0.75, "ANNOTATION", observationId="1", authorUserId="ann"),
            score("lost", 1, traceId="elsewhere"),
            score("nowhere", 1, observationId="nope"),
        ],
    )
    first, second = (turn.turn_id for turn in found.turns)
    assert {(g.turn_id == second, g.score, g.thumbs, g.correction, g.author) for g in found.feedback} == {
        (False, 0.5, None, None, "ann"),
        (False, -1.0, None, None, None),
        (True, 1.0, None, None, None),
        (True, None, "down", None, None),
        (True, None, None, "b!", None),
    }
    verdicts = [(s.content, s.verdict, s.turn_id) for s in found.states if s.kind == "test_verdict"]
    assert verdicts == [("helpful: 0.5", 0.5, second), ("length: 120", None, second), ("style: formal", None, second)]
    assert sorted(one.reason.split(" is ")[0] for one in found.refused) == [
        "a person's score 'stars'",
        "the score 'lost'",
        "the score 'nowhere'",
    ]
    assert first != second


def test_a_failed_call_is_a_turn_that_ended_in_error(read: Read) -> None:
    found = read(generation("1", 1, [user("q")], None, level="ERROR"), generation("2", 2, [user("q")], None))
    assert [turn.finish_reason for turn in found.turns] == ["error"]
    assert [one.reason for one in found.refused] == ["observation 2: what the model answered is not in the file"]


def test_traces_of_one_session_are_one_conversation(tmp_path: Path) -> None:
    def trace(key: str, second: int, *observations: Any) -> dict[str, Any]:
        about = {"id": key, "sessionId": "s", "timestamp": f"2026-01-01T00:00:0{second}Z"}
        return about | {
            "observations": [one | {"traceId": key} for one in observations],
            "scores": [score("ok", 1, traceId=key, id=f"score of {key}")],
        }

    rows = [
        trace("u", 2, generation("2", 2, [user("q"), says("a"), user("r")], says("b"))),
        trace("t", 1, generation("1", 1, [user("q")], says("a"))),
    ]
    found = Imported(langfuse, write_lines(tmp_path / "traces.jsonl", rows))
    assert len(found.closed) == 1
    assert found.answers() == [("a", ["r", "ok: 1"]), ("b", ["ok: 1"])], "each trace's score is on its own last turn"


def test_an_observation_that_is_there_twice_is_one(read: Read) -> None:
    old = generation("1", 1, [user("q")], None, updatedAt="2026-01-01T00:00:01Z")
    new = generation("1", 1, None, says("a"), updatedAt="2026-01-01T00:00:02Z")
    assert read(new, old).answers() == [("a", [])]
    snake = {"trace_id": "t", "start_time": "2026-01-01 00:00:01.000", "parent_observation_id": ""}
    plain = {"id": "1", "type": "GENERATION", "input": json.dumps([user("q")]), "output": json.dumps(says("a"))}
    assert read(snake | plain).answers() == [("a", [])]


def test_damage_costs_its_observation(read: Read, tmp_path: Path) -> None:
    long = "x" * 100_000
    read(generation("1", 1, [user("q")], says("a")), generation("2", 2, [user(long)], says(long)), 7)
    path = tmp_path / "trace.json"
    path.write_text(path.read_text().replace('"id": "1"', '"id": oops', 1))
    found = Imported(langfuse, path)
    assert found.answers() == [(long, [])]
    assert len(found.refused) == 2
    assert "reading went on at line" in found.refused[0].reason
    assert found.refused[1].reason == "an observation is a JSON number, not an object"


def test_what_is_taken_for_one() -> None:
    for value, ours in (
        ({"trace": {"id": "t", "projectId": "p"}}, True),
        ([{"id": "t", "timestamp": "", "observations": []}], True),
        ({"id": "o", "trace_id": "t", "start_time": "", "type": "SPAN", "parent_observation_id": None}, True),
        ({"traces": []}, False),
        ({"id": "o", "trace_id": "t", "run_type": "llm", "start_time": ""}, False),
    ):
        assert langfuse.sniff(Head("f", json.dumps(value).encode(), True)) is ours
