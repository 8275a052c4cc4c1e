"""Intervals and tests of the demo against values worked out by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hindstream.dashboard.figures import Figures, VersionReward
from hindstream.dashboard.screen import bars, figures_table, share
from hindstream.demo.curve import save_curve, terminal_curve
from hindstream.demo.statistics import mcnemar_p, wilson_interval


def test_wilson_interval_at_the_edges_and_in_the_middle() -> None:
    low, high = wilson_interval(0, 42)
    assert low == 0.0
    assert high == pytest.approx(3.841458820694124 / (42 + 3.841458820694124), rel=1e-12)
    low, high = wilson_interval(5, 10)
    assert (low, high) == (pytest.approx(0.236593, abs=1e-6), pytest.approx(0.763407, abs=1e-6))
    with pytest.raises(ValueError, match="no trials"):
        wilson_interval(0, 0)


def test_mcnemar_counts_only_answers_that_changed() -> None:
    assert mcnemar_p([False] * 10, [True] * 10) == pytest.approx(2 / 2**10)
    assert mcnemar_p([True, False] * 5, [True, False] * 5) == 1.0
    assert mcnemar_p([False] * 3 + [True], [True] * 3 + [False]) == pytest.approx(2 * (1 + 4) / 16)
    with pytest.raises(ValueError, match="shorter"):
        mcnemar_p([True], [])


def test_the_curve_shows_each_version() -> None:
    points = [
        VersionReward(version=0, turns=16, liked=0.0, tokens=75.0),
        VersionReward(version=1, turns=16, liked=0.5, tokens=40.0),
        VersionReward(version=2, turns=16, liked=1.0, tokens=20.0),
    ]
    lines = terminal_curve(points).splitlines()
    assert lines[0].startswith("100% │")
    assert lines[0].endswith("●")
    assert lines[4].index("●") < lines[0].index("●")
    assert lines[-1].split() == ["vers.", "0", "1", "2"]
    assert bars([0.0, 0.5, 1.0]) == " ▄█"
    assert terminal_curve([]) == "(no rewards yet)"


def test_the_png_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "demo.png"
    save_curve(path, [VersionReward(version=0, turns=1, liked=0.0, tokens=9.0)], (0, 42), (40, 42), 16)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 5_000


def test_an_unbalanced_ledger_is_shouted() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(figures_table("run", Figures(turns_seen=3, trained=1, balance=2), [], []))
    text = console.export_text()
    assert "2 UNACCOUNTED" in text
    assert share(1, 0) == "–"
