"""A comparison as a table in the terminal and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from hindstream.compare.figures import Comparison, RunFigures

if TYPE_CHECKING:  # it loads torch, which most comparisons do not need
    from hindstream.compare.held_out import HeldOut

LIMIT = (
    "A replay trains what an older policy said: its importance ratios show how far the trained policy had moved from "
    "the one that spoke, and no staleness is known. Rewards judge what was said then, not what a run's policy would "
    "say."
)
"""What every comparison must not hide."""

_METRICS = (
    ("ratio_p01", "importance ratio, 1 %"),
    ("ratio_p50", "importance ratio, median"),
    ("ratio_p99", "importance ratio, 99 %"),
    ("logprob_gap_mean", "log-prob gap, nats"),
    ("staleness_mean", "staleness, versions"),
    ("rl_advantage_mean", "advantage of rewards, mean"),
    ("rl_advantage_std", "advantage of rewards, std"),
    ("rl_advantage_p05", "advantage of rewards, 5 %"),
    ("rl_advantage_p50", "advantage of rewards, median"),
    ("rl_advantage_p95", "advantage of rewards, 95 %"),
    ("opd_advantage_mean", "advantage of hints, mean"),
    ("opd_advantage_std", "advantage of hints, std"),
    ("opd_advantage_p05", "advantage of hints, 5 %"),
    ("opd_advantage_p50", "advantage of hints, median"),
    ("opd_advantage_p95", "advantage of hints, 95 %"),
    ("kl_k3", "KL to the behaviour, nats"),
    ("entropy", "entropy, nats"),
    ("loss", "loss"),
)


def as_json(comparison: Comparison, held: HeldOut | None) -> dict[str, Any]:
    """The whole comparison as JSON-like data, with the limits in words."""
    plain = asdict(comparison)
    plain["held_out"] = None if held is None else asdict(held)
    plain["limit"] = LIMIT
    return plain


def print_comparison(console: Console, comparison: Comparison, held: HeldOut | None) -> None:
    """The comparison in words and tables."""
    for table in tables(comparison, held):
        console.print(table)
    console.print(LIMIT, style="dim")


def tables(comparison: Comparison, held: HeldOut | None) -> list[Table]:
    """What differs, the ledgers, agreement of rewards and hints, turns trained apart, and the steps' metrics."""
    a, b = comparison.a, comparison.b
    recipe, ledger, steps = _two("Recipe", a, b), _two("Ledger", a, b), _two("Steps, mean", a, b)
    recipe.add_row("recipe", a.recipe, b.recipe)
    for found in comparison.recipe:
        recipe.add_row(found.field, str(found.one), str(found.other))
    for name in a.ledger:
        ledger.add_row(name, str(a.ledger[name]), str(b.ledger[name]))
    ledger.add_row("weight versions", str(a.versions), str(b.versions))
    for name in sorted({*a.rewards, *b.rewards}):
        ledger.add_row(f"reward {name}", str(a.rewards.get(name, 0)), str(b.rewards.get(name, 0)))
    for name, words in _METRICS:
        if name in a.metrics or name in b.metrics:
            steps.add_row(words, number(a.metrics.get(name)), number(b.metrics.get(name)))
    made = [recipe, ledger, _agreement(comparison), _confusion(comparison), _apart(comparison), steps]
    return made if held is None else [*made, _held_out(held, comparison)]


def number(value: float | None) -> str:
    """A figure as it is shown; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"


def _two(title: str, a: RunFigures, b: RunFigures) -> Table:
    return Table("", a.run, b.run, title=title, title_justify="left", box=box.SIMPLE)


def _agreement(comparison: Comparison) -> Table:
    table = Table("", "turns", title="On the same turns", title_justify="left", box=box.SIMPLE)
    rewards, hints = comparison.rewards, comparison.hints
    table.add_row("in both runs", str(comparison.turns))
    table.add_row(f"only in {comparison.a.run} / {comparison.b.run}", f"{comparison.only_a} / {comparison.only_b}")
    table.add_row("rewarded in both", str(rewards.both))
    table.add_row("… of them alike", "–" if rewards.share is None else f"{rewards.share:.1%}")
    table.add_row("Cohen's kappa", number(rewards.kappa))
    table.add_row("a reward in one alone", f"{rewards.only_a} / {rewards.only_b}")
    table.add_row("the same hint", str(hints["same"]))
    table.add_row("hints of other words", str(hints["other_words"]))
    table.add_row("hints lost / gained", f"{hints['only_a']} / {hints['only_b']}")
    table.add_row("trained by both", str(comparison.trained_both))
    return table


def _confusion(comparison: Comparison) -> Table:
    columns = sorted({cell[1] for cell in comparison.confusion}, key=_rank)
    rows = sorted({cell[0] for cell in comparison.confusion}, key=_rank)
    title = f"Rewards: rows {comparison.a.run}, columns {comparison.b.run}"
    table = Table("", *map(_reward, columns), title=title, title_justify="left", box=box.SIMPLE)
    found = {(a, b): turns for a, b, turns in comparison.confusion}
    for row in rows:
        table.add_row(_reward(row), *(str(found.get((row, column), 0)) for column in columns))
    return table


def _held_out(held: HeldOut, comparison: Comparison) -> Table:
    table = _two("Held-out answers: log-prob gained since version 0, nats a token", comparison.a, comparison.b)
    gains = [held.gains[comparison.a.run], held.gains[comparison.b.run]]
    table.add_row("last version", *("–" if gain is None else str(gain.version) for gain in gains))
    for name, turns in (("liked", held.liked), ("disliked", held.disliked)):
        table.add_row(
            f"{turns} {name} answers", *(number(None if gain is None else getattr(gain, name)) for gain in gains)
        )
    return table


def _apart(comparison: Comparison) -> Table:
    a, b = comparison.a.run, comparison.b.run
    table = Table("turns", a, b, title="Trained by one alone", title_justify="left", box=box.SIMPLE)
    for row in comparison.trained_apart:
        table.add_row(
            str(row["turns"]),
            row["drop_reason_a"] or row["state_a"],
            row["drop_reason_b"] or row["state_b"],
        )
    return table


def _reward(value: float | None) -> str:
    return "none" if value is None else f"{value:+g}"


def _rank(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0
