"""The learning curve: a PNG to keep and a plot in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hindstream.dashboard.figures import VersionReward
from hindstream.demo.statistics import wilson_interval

_HEIGHT = 8
"""Rows of the terminal plot: steps of an eighth of the scale, readable at a glance."""


def terminal_curve(points: Sequence[VersionReward]) -> str:
    """Liked share by weight version as text, three characters a version: 24 of them fit a terminal of 80."""
    if not points:
        return "(no rewards yet)"
    rows = []
    for level in range(_HEIGHT, -1, -1):
        cells = "".join(" ● " if round(p.liked * _HEIGHT) == level else "   " for p in points)
        rows.append(f"{100 * level / _HEIGHT:3.0f}% │{cells}".rstrip())
    rows.append("     └" + "─" * (3 * len(points)))
    rows.append("vers. " + "".join(f"{p.version:2d} " for p in points).rstrip())
    return "\n".join(rows)


def save_curve(
    path: Path, points: Sequence[VersionReward], before: tuple[int, int], after: tuple[int, int], final: int
) -> None:
    """Write the curve as a PNG: training turns by the version that began them, and the held-out shares.

    `before` and `after` are (liked, asked) on held-out questions, under version 0 and under `final`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot([p.version for p in points], [p.liked for p in points], marker="o", label="turns while learning")
    for version, (liked, asked), label in (
        (0, before, "held out, before"),
        (final, after, "held out, after"),
    ):
        low, high = wilson_interval(liked, asked)
        share = liked / asked
        axes.errorbar(
            [version],
            [share],
            yerr=[[share - low], [high - share]],
            fmt="s",
            capsize=4,
            label=f"{label} (95 %)",
        )
    lengths = axes.twinx()
    lengths.plot([p.version for p in points], [p.tokens for p in points], color="grey", linestyle=":")
    lengths.set_ylabel("tokens an answer (dotted)")
    lengths.set_ylim(bottom=0)
    axes.set_xlabel("weight version")
    axes.set_ylabel("share of liked answers")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(loc="center right")
    axes.set_title("The policy learns what its user likes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
