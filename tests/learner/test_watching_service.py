"""A learner on a real log: its steps as rows, as curves, at the endpoint and on the terminal, and all say the same."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hindstream.dashboard.figures import Figures, read_steps
from hindstream.dashboard.progress import LearnerProgress
from hindstream.dashboard.screen import figures_table
from hindstream.dashboard.watchers import watchers
from hindstream.settings import LearnerSettings, Settings, WatchSettings
from learner.service import run_learner
from learner.watching import page
from learner.watching.definitions import DEFINITIONS, Definition
from learner.watching.steps import StepSeen
from learner.watching.table import write_definitions
from tests.learner.learning import Learning, Turn, mixed

pytestmark = pytest.mark.stack


class Watcher:
    """Keeps what it is shown, and fails all the same."""

    def __init__(self) -> None:
        self.seen: list[StepSeen] = []

    def observe(self, step: StepSeen) -> None:
        self.seen.append(step)
        raise RuntimeError("a watcher of no use")

    def close(self) -> None:
        pass


def test_the_same_figures_everywhere(learning: Learning, tmp_path: Path) -> None:
    learning.add_batch(mixed(0))
    learning.add_batch([Turn(oldest_version=1, reward=None)] * 2)  # nothing to learn from: no step
    learning.add_batch([*mixed(0), *mixed(1)])
    screen, watcher = io.StringIO(), Watcher()
    console = Console(file=screen, force_terminal=True, color_system=None, width=160)
    settings = Settings(learner=LearnerSettings(watch=WatchSettings(tensorboard_dir=tmp_path / "curves")))
    run_learner(learning.config(stop_after=3), watchers=[lambda: watcher, *watchers(settings, console)])

    steps = [(one.seq, one.version, one.skipped_reason) for one in watcher.seen]
    assert steps == [(1, 1, None), (2, None, "masked_batch"), (3, 2, None)]
    rows = learning.rows("SELECT step, name, value, unit, help FROM step_metrics WHERE run = :run")
    assert {(step, name): value for step, name, value, _, _ in rows} == {
        (one.seq, name): value for one in watcher.seen for name, value in one.values().items()
    }
    assert {(name, unit, text) for _, name, _, unit, text in rows} <= {
        (one.name, one.unit, one.help) for one in DEFINITIONS.values()
    }
    assert not any((step, name) == (2, "loss") for step, name, *_ in rows)

    curves = EventAccumulator(str(tmp_path / "curves" / learning.run))
    curves.Reload()
    loss = [event.value for event in curves.Scalars("loss/loss")]
    assert loss == pytest.approx([value for step, name, value, *_ in sorted(rows) if name == "loss"])

    shown = screen.getvalue()
    assert "no step (masked_batch)" in shown
    assert "version 2  8 trained" in shown
    with learning.engine.connect() as connection:
        read = read_steps(connection, learning.run)
    table = io.StringIO()
    Console(file=table, width=160).print(figures_table("run", Figures(), [], read))
    assert f"reward {watcher.seen[-1].values()['reward_mean']:+.2f}" in table.getvalue()


def test_what_the_page_asks_can_be_asked(learning: Learning) -> None:
    questions = re.findall(r'hindstream sql "([^"]+)"', page.FILE.read_text())
    assert len(questions) >= 4
    for question in questions:
        assert learning.rows(question) == []


def test_definitions_that_changed_are_written_again_and_older_ones_stay(
    learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning.execute("INSERT INTO metric_definitions VALUES ('old', '', 'loss', 'Of an older learner.')")
    with learning.engine.begin() as connection:
        write_definitions(connection)
    monkeypatch.setitem(DEFINITIONS, "loss", Definition("loss", "nats", "loss", "Another meaning."))
    with learning.engine.begin() as connection:
        write_definitions(connection)
        write_definitions(connection)
    found = dict(learning.rows("SELECT name, unit || '|' || help FROM metric_definitions"))
    assert found["old"] == "|Of an older learner."
    assert found["loss"] == "nats|Another meaning."
    assert len(found) == len(DEFINITIONS) + 1


def test_without_a_terminal_there_is_no_progress_and_nothing_is_opened_unasked() -> None:
    assert watchers(Settings(), Console(file=io.StringIO())) == []
    assert len(watchers(Settings(), Console(file=io.StringIO(), force_terminal=True))) == 1


def test_the_endpoint_tells_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(learner=LearnerSettings(watch=WatchSettings(prometheus_port=0)))
    (make,) = watchers(settings, Console(file=io.StringIO()))
    with caplog.at_level(logging.INFO):
        make().close()
    assert any("http://127.0.0.1:" in record.getMessage() for record in caplog.records)


def test_the_line_of_progress_says_what_cannot_be_said_with_a_dash() -> None:
    step = StepSeen(
        run="live", policy="p", seq=7, version=None, skipped_reason="stale", metrics={}, samples_trained=0,
        drops={"stale": 4}, tokens=0, seconds=0.1,
    )  # fmt: skip
    progress = LearnerProgress(Console(file=io.StringIO(), force_terminal=True, width=160))
    try:
        line = progress.render(step).plain
    finally:
        progress.close()
    assert " ".join(line.split()) == (
        "live micro-batch 7 → no step (stale) 0 trained, 4 dropped – tokens/s reward – kl – staleness –"
    )
