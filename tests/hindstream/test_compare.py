"""Two runs on the same turns: agreement by hand, views, and a page that needs nothing but itself."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sqlalchemy import text

from hindstream.cli.compare import compare
from hindstream.compare.agreement import agreement
from hindstream.errors import UserError
from tests.processors.conversations import Recording
from tests.processors.test_replay import ListLog, config, conversations, recipe, replay

TURNS = 21


def test_kappa_of_a_table_by_hand() -> None:
    """20 and 15 of 50 alike: observed 0.7, expected 0.5 x 0.6 + 0.5 x 0.4 = 0.5, kappa 0.4 (Cohen's own example)."""
    found = agreement({(1, 1): 20, (1, -1): 5, (-1, 1): 10, (-1, -1): 15, (None, 1): 3, (0, None): 2})
    assert (found.both, found.only_a, found.only_b) == (50, 2, 3)
    assert found.share == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("confusion", "share", "kappa"),
    [
        ({}, None, None),
        ({(None, 1): 4, (None, None): 2}, None, None),
        ({(1, 1): 9}, 1.0, None),
        ({(1, 1): 5, (-1, -1): 5}, 1.0, 1.0),
        ({(1, -1): 5, (-1, 1): 5}, 0.0, -1.0),
        ({(1, 1): 25, (1, -1): 25, (-1, 1): 25, (-1, -1): 25}, 0.5, 0.0),
        ({(1, 1): 2, (0, 0): 1, (0, -1): 1}, 0.75, (0.75 - 0.375) / 0.625),
    ],
)
def test_kappa_says_nothing_rather_than_zero(
    confusion: dict[tuple[float | None, float | None], int], share: float | None, kappa: float | None
) -> None:
    found = agreement(confusion)
    assert found.share == (None if share is None else pytest.approx(share))
    assert found.kappa == (None if kappa is None else pytest.approx(kappa))


@pytest.fixture
async def recording(migrated_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Run "plain" judges by two rules; run "strict" also takes "hm" (every seventh turn) for -1 and thanks for 0."""
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", migrated_database_url)
    made = Recording(migrated_database_url)
    log = ListLog(conversations(turns=TURNS, sessions=3))
    await replay(config(made, "plain", recipe()), log)
    strict = [
        {"pattern": "hm|wrong", "score": -1},
        {"pattern": "thanks", "score": 0},
    ]
    await replay(config(made, "strict", recipe(judge={"votes": 0, "rules": strict})), log)
    return made


@pytest.mark.stack
async def test_rewards_are_compared_turn_by_turn(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    compare("plain", "strict", json_=True)
    shown = json.loads(capsys.readouterr().out)
    silent = [n for n in range(TURNS) if n % 7 == 0]
    wrong = [n for n in range(TURNS) if n % 7 and n % 3 == 0]
    thanks = [n for n in range(TURNS) if n % 7 and n % 3]
    assert shown["turns"] == TURNS
    assert sorted(shown["confusion"], key=str) == sorted(
        [[-1.0, -1.0, len(wrong)], [1.0, 0.0, len(thanks)], [None, -1.0, len(silent)]], key=str
    )
    both = len(wrong) + len(thanks)
    assert shown["rewards"]["both"] == both
    assert shown["rewards"]["only_b"] == len(silent)
    assert shown["rewards"]["share"] == pytest.approx(len(wrong) / both)
    expected = (len(wrong) / both) ** 2
    assert shown["rewards"]["kappa"] == pytest.approx((len(wrong) / both - expected) / (1 - expected))
    assert {found["field"] for found in shown["recipe"]} == {"judge.rules"}
    assert "older policy" in shown["limit"]


@pytest.mark.stack
async def test_turns_that_one_run_alone_trained_have_their_reasons(recording: Recording) -> None:
    with recording.engine.begin() as connection:
        connection.execute(
            text("UPDATE samples SET state = 'trained', micro_batch_id = 'x' WHERE state IN ('ready', 'batched')")
        )
    apart = recording.rows(
        "SELECT drop_reason_a, drop_reason_b, turns FROM trained_apart "
        "WHERE run_a = 'plain' AND run_b = 'strict' ORDER BY turns"
    )
    assert apart == [("reward_abstained", None, 3), (None, "no_signal", 12)]
    mirrored = recording.rows(
        "SELECT drop_reason_a, drop_reason_b, turns FROM trained_apart "
        "WHERE run_a = 'strict' AND run_b = 'plain' ORDER BY turns"
    )
    assert mirrored == [(None, "reward_abstained", 3), ("no_signal", None, 12)]


@pytest.mark.stack
async def test_the_page_opens_from_disk(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with recording.engine.begin() as connection:
        for run in ("plain", "strict"):
            connection.execute(
                text(
                    "INSERT INTO training_steps (run, step, micro_batch_id, policy, version, skipped_reason, metrics, "
                    "samples_trained, samples_dropped, tokens, seconds) "
                    "SELECT run, seq, micro_batch_id, policy, seq, NULL, "
                    "jsonb_build_object('loss', -0.1 * seq, 'ratio_p50', 1.0), size, 0, 12, 0.5 "
                    "FROM micro_batches WHERE run = :run"
                ),
                {"run": run},
            )
    file = tmp_path / "new" / "page.html"
    compare("plain", "strict", html=file)
    printed = capsys.readouterr().out
    assert "Cohen's kappa" in printed
    assert "importance ratio, median" in printed
    written = file.read_text()

    loads: list[str] = []
    cells: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            loads.extend(value or "" for name, value in attrs if name in ("src", "href"))

        def handle_data(self, data: str) -> None:
            cells.append(data)

    Reader().feed(written)
    assert len(loads) == 1
    assert all(load.startswith("data:image/png;base64,") for load in loads)
    assert "plain" in cells
    assert re.search(r"<td>rewarded in both</td><td>18</td>", written)


@pytest.mark.stack
async def test_a_run_that_is_not_there_is_named(recording: Recording) -> None:
    with pytest.raises(UserError, match="no run 'nobody'"):
        compare("plain", "nobody")
