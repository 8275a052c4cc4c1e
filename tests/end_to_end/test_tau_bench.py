"""tau-bench goes in whole and comes out as turns, next states and verdict rewards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.recipes import Recipe, recipe_named
from tests.end_to_end.pipeline import Pipeline

pytestmark = [pytest.mark.stack, pytest.mark.vllm, pytest.mark.slow]


def counted(entries: list[dict[str, Any]]) -> dict[str, int]:
    """What the file holds, counted without the importer: one pass over roles."""
    counts: Counter[str] = Counter(sessions=len(entries))
    for entry in entries:
        assistant_seen = False
        for message in entry["traj"]:
            if message["role"] == "assistant":
                assistant_seen = True
                counts["turns"] += 1
            elif message["role"] == "tool" and assistant_seen:
                counts["tool_result"] += 1
            elif message["role"] == "user" and assistant_seen:
                counts["user_reply"] += 1
        counts["test_verdict"] += 1
        counts["passed" if entry["reward"] == 1 else "failed"] += 1
    return dict(counts)


def nearest_call(entry: dict[str, Any]) -> list[tuple[str, int]]:
    """For each tool message: its call id, and which assistant message of the entry last made that call."""
    made: dict[str, int] = {}
    links, assistants = [], -1
    for message in entry["traj"]:
        if message["role"] == "assistant":
            assistants += 1
            made.update({call["id"]: assistants for call in message.get("tool_calls") or []})
        elif message["role"] == "tool":
            links.append((message["tool_call_id"], made[message["tool_call_id"]]))
    return links


def test_tau_bench_goes_in_whole_and_its_verdicts_become_rewards(
    start_pipeline: Callable[[Recipe, str], Pipeline], shared_dir: Path
) -> None:
    path = shared_dir / "data" / "tau_bench" / "gpt-4o-airline.subset.json"
    entries = json.loads(path.read_text())
    expected = counted(entries)
    recipe = recipe_named("binary-rl", {"judge": {"votes": 0}})
    pipeline = start_pipeline(recipe, "tau")
    pipeline.start("worker", "worker", "run")
    pipeline.wait(lambda: pipeline.value("SELECT count(*) FROM runs") == 1, 180, "the run was not made")
    for name in ("import-1", "import-2"):
        pipeline.start(name, "import", str(path))
        log = pipeline.services.log_dir / f"{name}.log"
        pipeline.services.finish(name, 120)
        assert str(expected["turns"]) in log.read_text()

    turns = "SELECT count(*) FROM turns"
    pipeline.wait(lambda: pipeline.value(turns) == expected["turns"], 180, "not every turn was recorded")
    open_work = "SELECT count(*) FROM evaluations WHERE state NOT IN ('done', 'failed')"
    rewarded = "SELECT count(*) FROM rewards WHERE value IS NOT NULL"
    pipeline.wait(
        lambda: pipeline.value(open_work) == 0 and pipeline.value(rewarded) >= expected["sessions"], 60, "no rewards"
    )

    kinds = {row.kind: row.n for row in pipeline.rows("SELECT kind, count(*) AS n FROM next_states GROUP BY 1")}
    assert kinds == {kind: expected[kind] for kind in ("tool_result", "user_reply", "test_verdict")}
    assert pipeline.value("SELECT count(*) FROM sessions WHERE closed_at IS NOT NULL") == expected["sessions"]
    verdicts = pipeline.rows(
        "SELECT w.value, count(*) AS n FROM rewards w JOIN next_states n USING (turn_id) "
        "WHERE n.kind = 'test_verdict' GROUP BY 1"
    )
    assert {row.value: row.n for row in verdicts} == {
        value: expected[name] for value, name in ((1.0, "passed"), (-1.0, "failed")) if expected.get(name)
    }
    assert pipeline.value("SELECT count(*) FROM rewards WHERE annotator_kind <> 'CODE'") == 0
    assert pipeline.value("SELECT count(*) FROM dead_letters") == 0

    links = Counter(
        (row.tool_call_id, row.ordinal)
        for row in pipeline.rows(
            "SELECT n.tool_call_id, t.ordinal FROM next_states n JOIN turns t USING (turn_id) "
            "WHERE n.kind = 'tool_result'"
        )
    )
    expected_links = Counter(link for entry in entries for link in nearest_call(entry))
    assert links == expected_links
    repeated = sum(count > 1 for entry in entries for count in Counter(c for c, _ in nearest_call(entry)).values())
    assert repeated > 0, "the file holds tool_call ids that are used again: they are what this test is about"
    ledger = pipeline.ledger()
    assert ledger["balance"] == 0
    assert ledger["turns_seen"] == ledger["dropped"] == expected["turns"]
