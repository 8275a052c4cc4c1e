"""tau-bench: what the shared file holds is all there, linked right, and a broken row costs only itself."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import IMPORTERS, RefusedRow
from schemas.envelope import Event, decode, encode
from schemas.events import NextStateObserved, SessionClosed, TurnRecorded

READ = IMPORTERS["tau-bench"].read
FILE = Path(__file__).parents[3] / "shared/data/tau_bench/gpt-4o-airline.subset.json"
needs_file = pytest.mark.skipif(not FILE.exists(), reason=f"the shared sample data are not at {FILE}")

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> Path:
        path = tmp_path / "log.json"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return path

    return to_file


def events_of(path: Path) -> list[Event]:
    return [row for row in READ(path) if isinstance(row, Event)]


def refused_of(path: Path) -> list[RefusedRow]:
    return [row for row in READ(path) if isinstance(row, RefusedRow)]


def turns_of(path: Path) -> list[TurnRecorded]:
    return [event.data for event in events_of(path) if isinstance(event.data, TurnRecorded)]


def states_of(path: Path) -> list[NextStateObserved]:
    return [event.data for event in events_of(path) if isinstance(event.data, NextStateObserved)]


def call(call_id: str, name: str = "look", arguments: str = '{"a":  1}') -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str, content: Any = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "look", "content": content}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def entry(*traj: Any, reward: Any = 1.0, task_id: int = 0) -> dict[str, Any]:
    return {"task_id": task_id, "reward": reward, "info": {}, "traj": list(traj), "trial": 0}


def one(*traj: Any, reward: Any = 1.0) -> str:
    return json.dumps([entry(*traj, reward=reward)], indent=1)


# --- the shared file; the numbers were counted with grep over its lines -------------------------------------------


@needs_file
def test_every_message_of_the_shared_file_is_there() -> None:
    assert refused_of(FILE) == []
    kinds = Counter(state.kind for state in states_of(FILE))
    # 97 lines with `"role": "assistant"`, 53 with tool, 51 with user, of which one in each of 7 entries is the prompt.
    assert len(turns_of(FILE)) == 97
    assert kinds == {"tool_result": 53, "user_reply": 51 - 7, "test_verdict": 7}
    verdicts = Counter(state.verdict for state in states_of(FILE) if state.kind == "test_verdict")
    assert verdicts == {0.0: 4, 1.0: 3}
    closed = [event.data for event in events_of(FILE) if isinstance(event.data, SessionClosed)]
    assert len(closed) == 7
    assert sum(data.turns or 0 for data in closed) == 97
    assert sum(data.next_states or 0 for data in closed) == 104
    assert sum(len(turn.response.tool_calls) for turn in turns_of(FILE)) == 53


@needs_file
def test_every_tool_result_of_the_shared_file_links_to_the_nearest_call_before_it() -> None:
    """Computed here from the raw file by looking backwards from each result, as the importer does not."""
    repeated = 0
    for raw in json.loads(FILE.read_text()):
        traj = raw["traj"]
        assistants = [i for i, message in enumerate(traj) if message["role"] == "assistant"]
        mine = [t for t in turns_of(FILE) if t.messages[:3] == traj[:2] or t.messages[:3] == traj[:3]]
        assert len(mine) == len(assistants)
        for index, message in enumerate(traj):
            if message["role"] != "tool":
                continue
            holders = [
                i
                for i in assistants
                if i < index and any(c["id"] == message["tool_call_id"] for c in traj[i].get("tool_calls") or [])
            ]
            repeated += len(holders) > 1
            owner = next(turn for turn in mine if len(turn.messages) == holders[-1])
            linked = [s for s in states_of(FILE) if s.turn_id == owner.turn_id and s.kind == "tool_result"]
            assert (message["tool_call_id"], message["content"]) in [(s.tool_call_id, s.content) for s in linked]
    assert repeated == 4  # in entry 1 at messages 6/16 and 8/12, in entry 3 at 10/44 and 40/50


@needs_file
def test_the_first_repeated_id_links_7_to_6_and_17_to_16() -> None:
    session = turns_of(FILE)[0].session_id
    by_request = {len(turn.messages): turn for turn in turns_of(FILE) if turn.session_id == session}
    again = "call_oIHazX6yQrB8hUwl4cRilFKj"
    states = [s for s in states_of(FILE) if s.session_id == session and s.tool_call_id == again]
    assert [s.turn_id for s in states] == [by_request[6].turn_id, by_request[16].turn_id]
    raw = json.loads(FILE.read_text())[0]["traj"]
    assert [s.content for s in states] == [raw[7]["content"], raw[17]["content"]]


@needs_file
def test_turns_follow_each_other_and_carry_what_answered_their_parent() -> None:
    turns = turns_of(FILE)
    states: dict[str, list[NextStateObserved]] = {}
    for state in states_of(FILE):
        states.setdefault(state.turn_id, []).append(state)
    by_id = {turn.turn_id: turn for turn in turns}
    assert len(by_id) == 97
    for turn in turns:
        assert (turn.parent_turn_id is None) == (turn.ordinal == 0)
        if turn.parent_turn_id is None:
            assert turn.next_state_ids == []
            continue
        parent = by_id[turn.parent_turn_id]
        assert parent.ordinal == turn.ordinal - 1
        assert turn.next_state_ids == [s.next_state_id for s in states[parent.turn_id]]
        assert turn.messages[: len(parent.messages)] == parent.messages
        assert turn.messages[len(parent.messages)]["role"] == "assistant"


@needs_file
def test_the_verdict_stands_on_the_last_turn_of_each_session() -> None:
    last = {turn.session_id: turn.turn_id for turn in turns_of(FILE)}
    verdicts = {s.session_id: (s.turn_id, s.verdict) for s in states_of(FILE) if s.kind == "test_verdict"}
    rewards = [raw["reward"] for raw in json.loads(FILE.read_text())]
    assert verdicts == {session: (turn, reward) for (session, turn), reward in zip(last.items(), rewards, strict=True)}


@needs_file
def test_the_same_file_under_another_name_gives_the_same_bytes_but_for_the_name(tmp_path: Path) -> None:
    first, again = events_of(FILE), events_of(FILE)
    assert [encode(event) for event in first] == [encode(event) for event in again]
    moved = tmp_path / "renamed.json"
    shutil.copy(FILE, moved)
    renamed = events_of(moved)
    assert [event.id for event in renamed] == [event.id for event in first]
    assert [event.content_digest() for event in renamed] == [event.content_digest() for event in first]
    assert {event.data.origin.file for event in renamed if event.data.origin} == {"renamed.json"}  # type: ignore[union-attr]


@needs_file
def test_layout_and_order_of_the_file_change_no_id(tmp_path: Path) -> None:
    other = tmp_path / "compact.json"
    other.write_text(json.dumps(list(reversed(json.loads(FILE.read_text())))))
    assert {event.id for event in events_of(other)} == {event.id for event in events_of(FILE)}


@needs_file
def test_every_event_survives_the_wire() -> None:
    events = events_of(FILE)
    for event in events:
        record = encode(event)
        assert decode(record.value, record.headers) == event
    assert len({(event.source, event.id) for event in events}) == len(events) == 97 + 104 + 7


@needs_file
def test_origins_name_the_line_on_which_the_entry_starts() -> None:
    lines = FILE.read_text().splitlines()
    starts = sorted({turn.origin.line for turn in turns_of(FILE) if turn.origin})
    assert len(starts) == 7
    assert all(lines[line - 1] == " {" and '"task_id"' in lines[line] for line in starts)


# --- what a turn says ---------------------------------------------------------------------------------------------


def test_a_turn_holds_request_response_and_raw_arguments(write: Write) -> None:
    system = {"role": "system", "content": "be kind"}
    path = write(one(system, user("hi"), call("c1"), result("c1"), says("done"), user("thanks")))
    first, second = turns_of(path)
    assert first.messages == [system, user("hi")]
    assert first.response.tool_calls[0].arguments == '{"a":  1}'
    assert (first.finish_reason, second.finish_reason) == ("tool_calls", "stop")
    assert second.messages == [system, user("hi"), call("c1"), result("c1")]
    assert (second.tokens.source, second.policy.name, second.kind) == ("none", "unknown", "main")
    assert [(s.kind, s.ordinal, s.content) for s in states_of(path)] == [
        ("tool_result", 0, "found"),
        ("user_reply", 0, "thanks"),
        ("test_verdict", 1, None),
    ]


def test_parallel_results_and_a_reply_all_answer_one_turn(write: Write) -> None:
    both = call("c1") | {"tool_calls": call("c1")["tool_calls"] + call("c2")["tool_calls"]}
    path = write(one(user("hi"), both, result("c2", "two"), result("c1", "one"), user("and?"), says("ok")))
    turn, following = turns_of(path)
    answers = [s for s in states_of(path) if s.turn_id == turn.turn_id]
    assert [(s.ordinal, s.content) for s in answers] == [(0, "two"), (1, "one"), (2, "and?")]
    assert following.next_state_ids == [s.next_state_id for s in answers]


def test_a_late_result_belongs_to_its_own_turn_and_the_parent_waits_for_it(write: Write) -> None:
    path = write(one(user("hi"), call("c1"), user("wait"), call("c2"), result("c1"), result("c2"), says("ok")))
    first, second, _ = turns_of(path)
    late = next(s for s in states_of(path) if s.tool_call_id == "c1")
    assert late.turn_id == first.turn_id
    assert late.next_state_id in second.next_state_ids


def test_an_empty_answer_is_aborted_and_takes_the_reply_that_follows_it(write: Write) -> None:
    path = write(one(user("a"), says("fine"), user("b"), says(None), user("c")))
    older, aborted = turns_of(path)
    assert aborted.finish_reason == "aborted"
    assert [s.content for s in states_of(path) if s.turn_id == older.turn_id] == ["b"]
    assert [s.content for s in states_of(path) if s.turn_id == aborted.turn_id] == ["c", None]


def test_nul_and_lone_surrogates_survive_and_tell_sessions_apart(write: Write) -> None:
    texts = ["a\x00b", "a�b", "a\ud800b"]
    path = write(json.dumps([entry(user("hi"), says("x"), user(text)) for text in texts]))
    assert refused_of(path) == []
    replies = [e for e in events_of(path) if isinstance(e.data, NextStateObserved) and e.data.kind == "user_reply"]
    read = [decode(record.value, record.headers).data for record in map(encode, replies)]
    assert [getattr(data, "content", "") for data in read] == ["a�b"] * 3
    assert [data.sanitised for data in read] == [True, False, True]
    assert len({event.key for event in replies}) == 3
    renamed = path.rename(path.with_name("other.json"))
    for before, after in zip(replies, [e for e in events_of(renamed) if e.id in {r.id for r in replies}], strict=True):
        wires = encode(before), encode(after)
        digests = {decode(wire.value, wire.headers).content_digest() for wire in wires}
        assert len(digests) == 1


def test_bytes_that_are_not_utf8_do_not_lose_the_file(tmp_path: Path) -> None:
    path = tmp_path / "latin1.json"
    path.write_bytes(one(user("hi"), says("x"), user("caf#")).encode().replace(b"#", b"\xe9"))
    assert refused_of(path) == []
    record = encode(next(e for e in events_of(path) if isinstance(e.data, NextStateObserved)))
    data = decode(record.value, record.headers).data
    assert getattr(data, "content", "") == "caf�"
    assert data.sanitised


# --- refused rows -------------------------------------------------------------------------------------------------

GOOD = entry(user("hi"), says("hello"), user("bye"), task_id=9)
BAD_MESSAGES = {
    "unknown role": ({"role": "narrator", "content": "x"}, "role 'narrator'"),
    "no role": ({"content": "x"}, "role None"),
    "no object": ("just text", "a JSON string, not an object"),
    "null": (None, "a JSON null, not an object"),
    "user without text": (user(None), "`content` is neither"),
    "content is a number": (user(7), "`content` is neither"),
    "result without id": ({"role": "tool", "content": "x"}, "without `tool_call_id`"),
    "result of no call": (result("nobody"), "'nobody'"),
    "calls are no list": ({"role": "assistant", "content": None, "tool_calls": "x"}, "not a list"),
    "call without function": ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "no `function`"),
    "arguments parsed": (call("c", arguments={"a": 1}), "not a string"),  # type: ignore[arg-type]
    "call without name": (call("c", name=""), "no function name"),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_a_bad_message_is_listed_and_the_rest_goes_in(write: Write, name: str) -> None:
    message, reason = BAD_MESSAGES[name]
    traj = [user("hi"), says("one"), user("first"), message, says("two"), user("second")]
    path = write(json.dumps([GOOD, entry(*traj)], indent=1))
    (refused,) = refused_of(path)
    line = 1 + path.read_text().splitlines().index(" },") + 1
    assert (refused.file, refused.line) == ("log.json", line)
    assert refused.reason.startswith("entry 2, message 3: ")
    assert reason in refused.reason
    turns = [turn for turn in turns_of(path) if turn.origin and turn.origin.line == line]
    assert [turn.response.content for turn in turns] == ["one", "two"]
    assert [s.content for s in states_of(path) if s.kind == "user_reply"] == ["bye", "first", "second"]
    assert (message in turns[1].messages) == isinstance(message, dict)


def test_a_reply_to_an_unreadable_answer_is_not_given_to_an_older_turn(write: Write) -> None:
    broken = {"role": "assistant", "content": 7}
    path = write(one(user("a"), call("c1"), result("c1"), broken, user("bad!"), result("c1"), says("ok"), user("good")))
    assert [r.reason.partition(": ")[2] for r in refused_of(path)] == [
        "`content` is neither a string nor a list of text parts",
        "the turn that it answers could not be read",
        "the turn that it answers could not be read",
    ]
    assert [s.content for s in states_of(path)] == ["found", "good", None]


def test_a_verdict_does_not_move_to_an_older_turn(write: Write) -> None:
    path = write(one(user("a"), says("ok"), user("more"), {"role": "assistant", "content": 7}, reward=0.0))
    assert [s.kind for s in states_of(path)] == ["user_reply"]
    assert refused_of(path)[-1].reason == "entry 1: the turn that it answers could not be read"


@pytest.mark.parametrize("reward", ["1", None, True, -0.5, 1.5, float("nan"), [1]])
def test_a_reward_that_is_no_share_gives_no_verdict_but_the_turns_go_in(write: Write, reward: Any) -> None:
    path = write(one(user("a"), says("b"), reward=reward))
    (refused,) = refused_of(path)
    assert "`reward` is" in refused.reason
    assert len(turns_of(path)) == 1
    assert states_of(path) == []


def test_a_missing_reward_is_told(write: Write) -> None:
    without = entry(user("a"), says("b"))
    del without["reward"]
    path = write(json.dumps([without]))
    assert "no `reward`" in refused_of(path)[0].reason
    assert len(turns_of(path)) == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("text", "entry 2 is a JSON string"),
        (None, "entry 2 is a JSON null"),
        ({"task_id": 1}, "entry 2 has no list `traj`"),
        ({"traj": {}}, "entry 2 has no list `traj`"),
        ({"traj": []}, "entry 2 has no assistant message"),
        ({"traj": [user("hi")]}, "entry 2 has no assistant message"),
    ],
)
def test_a_bad_entry_is_listed_with_its_line_and_the_others_go_in(write: Write, bad: Any, reason: str) -> None:
    path = write("[\n" + ",\n".join(json.dumps(row) for row in (GOOD, bad, entry(user("x"), says("y")))) + "\n]")
    (refused,) = refused_of(path)
    assert refused.line == 3
    assert refused.reason.startswith(reason)
    assert len(turns_of(path)) == 2


def test_the_same_entry_twice_in_a_file_goes_in_once(write: Write) -> None:
    path = write("[\n" + json.dumps(GOOD) + ",\n" + json.dumps(GOOD) + "\n]")
    assert len(turns_of(path)) == 1
    assert "repeats the entry at line 2" in refused_of(path)[0].reason


def test_a_file_that_breaks_off_gives_every_whole_entry(write: Write) -> None:
    text = json.dumps([GOOD, entry(user("x"), says("y"))], indent=1)
    path = write(text[: text.index('"y"') + 1])
    assert len(turns_of(path)) == 1
    (refused,) = refused_of(path)
    assert refused.line == text[: text.rindex("\n {\n") + 1].count("\n") + 1
    assert "not JSON at line" in refused.reason
    assert "nothing after it could be read" in refused.reason


def test_a_syntax_error_in_the_middle_costs_one_entry(write: Write) -> None:
    rows = [GOOD, entry(user("x"), says("y")), entry(user("p"), says("q"))]
    path = write(json.dumps(rows, indent=1).replace('"x"', '"x'))
    assert [turn.response.content for turn in turns_of(path)] == ["hello", "q"]
    (refused,) = refused_of(path)
    assert "reading went on at line" in refused.reason


def test_a_missing_comma_between_entries_costs_nothing_but_a_line_in_the_list(write: Write) -> None:
    rows = [GOOD, entry(user("x"), says("y"))]
    path = write(json.dumps(rows, indent=1).replace("\n },\n {", "\n }\n {"))
    assert [turn.response.content for turn in turns_of(path)] == ["hello", "y"]
    assert len(refused_of(path)) == 1


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "the file is not JSON"),
        ("\n\nhello", 3, "not JSON at line 3, column 1"),
        ("\x00", 1, "the file is not JSON"),
        ('{"traj": []}', 1, "a JSON object, not the list"),
        ("[" * 100_000, 1, "nested too deeply"),
        ("[]\n]", 2, "text after the end"),
        ("[1" + "0" * 5000 + "]", 1, "Exceeds the limit"),
    ],
)
def test_a_file_that_is_no_such_log_gives_one_row_that_says_so(write: Write, text: str, line: int, reason: str) -> None:
    (refused,) = READ(write(text))
    assert isinstance(refused, RefusedRow)
    assert refused.line == line
    assert reason in refused.reason


def test_a_byte_order_mark_and_raw_control_characters_are_read(write: Write) -> None:
    path = write("\ufeff" + one(user("a"), says("b"), user("tab#")).replace("#", "\t\x00"))
    assert refused_of(path) == []
    assert states_of(path)[0].content == "tab\t\x00"
