"""Whatever a file holds, an importer does not raise, and what it yields can be published and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producers.importers import IMPORTERS, Importer, RefusedRow
from schemas.envelope import decode, encode
from schemas.events import SessionClosed

SHARED = Path(__file__).parents[3] / "shared/data"
SAMPLES = [
    ("tau-bench", "tau_bench/gpt-4o-airline.subset.json"),
    ("swe-agent", "swe_agent/test-repo-1c2844.traj"),
    ("swe-agent", "swe_agent/i_got_id_demo_v0.traj"),
]
needs_files = pytest.mark.skipif(not SHARED.exists(), reason=f"the shared sample data are not at {SHARED}")
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

text = st.text(alphabet=st.characters(), max_size=6)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
call = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["a", "b"]) | anything,
        "function": st.just({"name": "f", "arguments": "{}"}) | anything,
    },
)
message = anything | st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool"]) | anything,
        "content": text | anything,
        "tool_calls": st.lists(call, max_size=2) | anything,
        "tool_call_id": st.sampled_from(["a", "b"]) | anything,
        "tool_call_ids": anything,
        "action": text | anything,
        "is_demo": anything,
    },
)
step = anything | st.fixed_dictionaries(
    {},
    optional={
        "response": text | anything,
        "observation": text | anything,
        "action": text | anything,
        "query": st.lists(message, max_size=2) | anything,
    },
)
entry = anything | st.fixed_dictionaries({}, optional={"traj": st.lists(message, max_size=6), "reward": anything})
run = anything | st.fixed_dictionaries(
    {},
    optional={
        "trajectory": st.lists(step, max_size=4) | anything,
        "history": st.lists(message, max_size=6) | anything,
        "replay_config": anything,
    },
)


def check(importer: Importer, path: Path) -> None:
    rows = list(importer.read(path))
    assert rows or path.read_bytes().strip() in (b"[]", b"\xef\xbb\xbf[]")
    events = [row for row in rows if not isinstance(row, RefusedRow)]
    for event in events:
        record = encode(event)
        read = decode(record.value, record.headers)
        assert (read.id, read.key) == (event.id, event.key)
    assert len({event.id for event in events}) == len(events)
    lines = path.read_bytes().count(b"\n") + 1
    assert all(1 <= row.line <= lines for row in rows if isinstance(row, RefusedRow))
    for closed in (event.data for event in events if isinstance(event.data, SessionClosed)):
        mine = [event for event in events if event.key == closed.session_id]
        assert len(mine) == (closed.turns or 0) + (closed.next_states or 0) + 1


@given(st.lists(entry, max_size=3) | anything)
@many
def test_any_json_as_tau_bench(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps(content, indent=1))
    check(IMPORTERS["tau-bench"], path)


@given(run)
@many
def test_any_json_as_swe_agent(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "any.traj"
    path.write_text(json.dumps(content, indent=1))
    check(IMPORTERS["swe-agent"], path)


@needs_files
@pytest.mark.parametrize(("name", "file"), SAMPLES)
@given(at=st.floats(0, 1), cut=st.integers(0, 40), put=st.binary(max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file(tmp_path: Path, name: str, file: str, at: float, cut: int, put: bytes) -> None:
    whole = (SHARED / file).read_bytes()
    where = int(at * len(whole))
    path = tmp_path / "damaged"
    path.write_bytes(whole[:where] + put + whole[where + cut :])
    check(IMPORTERS[name], path)


@pytest.mark.parametrize("depth", [100, 300, 450, 600, 900, 980, 5000])
def test_deep_nesting_is_read_or_refused(tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    path = tmp_path / "deep"
    path.write_text('[{"reward": 1, "traj": [{"role": "assistant", "content": "a", "x": DEEP}]}]'.replace("DEEP", deep))
    check(IMPORTERS["tau-bench"], path)
    query = '[{"role": "user", "content": DEEP}]'.replace("DEEP", deep)
    path.write_text(f'{{"trajectory": [{{"response": "a", "query": {query}}}]}}')
    check(IMPORTERS["swe-agent"], path)
