"""What the demo says at its end: figures for people and the same ones as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hindstream.dashboard.figures import Figures, VersionReward
from hindstream.demo.curve import terminal_curve
from hindstream.demo.statistics import mcnemar_p, wilson_interval
from learner.drift import Drift
from producers.simulated_user.talk import Answered

_SHOWN_ANSWERS = 4
"""Answers printed before and after: enough to see what changed, few enough to read."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that a demo found out."""

    run: str
    seed: int
    before: list[Answered]
    after: list[Answered]
    final_version: int
    figures: Figures
    rewards: list[VersionReward]
    drift: Drift
    seconds: float
    learning_seconds: float

    @property
    def liked_before(self) -> int:
        """Liked held-out answers of version 0."""
        return sum(a.opinion == "liked" for a in self.before)

    @property
    def liked_after(self) -> int:
        """Liked held-out answers of the final version."""
        return sum(a.opinion == "liked" for a in self.after)

    @property
    def p_value(self) -> float:
        """McNemar's exact p over the same questions before and after."""
        return mcnemar_p([a.opinion == "liked" for a in self.before], [a.opinion == "liked" for a in self.after])


def save_json(path: Path, outcome: Outcome) -> None:
    """Write the figures of `outcome`, shares as numbers in [0, 1]."""
    figures = outcome.figures
    ledger = {
        name: getattr(figures, name)
        for name in ("turns_seen", "trained", "ready", "batched", "pending", "dropped", "balance")
    }
    plain = {
        "run": outcome.run,
        "seed": outcome.seed,
        "liked_before": outcome.liked_before / len(outcome.before),
        "liked_before_95": wilson_interval(outcome.liked_before, len(outcome.before)),
        "liked_after": outcome.liked_after / len(outcome.after),
        "liked_after_95": wilson_interval(outcome.liked_after, len(outcome.after)),
        "held_out_answers": len(outcome.after),
        "p_value": outcome.p_value,
        "turns": figures.turns_seen,
        "rewards": figures.rewards,
        "hints": figures.hints,
        "micro_batches": figures.micro_batches,
        "weight_versions": figures.weight_versions,
        "final_version": outcome.final_version,
        "mean_staleness": figures.mean_staleness,
        "max_staleness": figures.max_staleness,
        "ledger": ledger,
        "drops": figures.drops,
        "liked_by_version": [asdict(reward) for reward in outcome.rewards],
        "drift": asdict(outcome.drift),
        "opinions_after": {
            opinion: sum(a.opinion == opinion for a in outcome.after)
            for opinion in sorted({a.opinion for a in outcome.after})
        },
        "learning_seconds": round(outcome.learning_seconds, 1),
        "seconds": round(outcome.seconds, 1),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain, indent=2) + "\n")


def print_report(console: Console, outcome: Outcome, curve: Path, figures: Path) -> None:
    """Print shares, curve, drift, a few answers, and where to look further."""
    console.rule("What was learned")
    for name, liked, answers in (
        ("before", outcome.liked_before, outcome.before),
        ("after", outcome.liked_after, outcome.after),
    ):
        low, high = wilson_interval(liked, len(answers))
        console.print(
            f"liked {name}: [bold]{liked / len(answers):.2f}[/bold] "
            f"({liked} of {len(answers)} answers to questions never trained; 95 % {low:.2f} to {high:.2f})"
        )
    console.print(f"a change this lopsided by chance: p = {outcome.p_value:.1e} (McNemar, exact)")
    console.print(
        f"drift: KL to the base {outcome.drift.kl_to_base:.2f} nats a token on its own answers; untouched text "
        f"{outcome.drift.text_before:.3f} → {outcome.drift.text_after:.3f} nats a token"
    )
    console.print("\nliked answers by the weight version that gave them:\n")
    console.print(terminal_curve(outcome.rewards), markup=False, highlight=False)
    console.print(_answers(outcome))
    console.rule("Look further")
    console.print(
        f"curve {curve}, figures {figures}\n\n"
        f"  hindstream sql \"SELECT * FROM ledger WHERE run = '{outcome.run}'\"\n"
        f'  hindstream sql "SELECT answered, reward, hint, teacher_gain FROM lineage '
        f"WHERE run = '{outcome.run}' AND version = {outcome.final_version}\"\n"
        f"  hindstream sql \"SELECT * FROM drops WHERE run = '{outcome.run}'\"\n"
        f"  hindstream weights list --policy {outcome.run}\n\n"
        "Point a real agent at it: start `hindstream worker run`, `hindstream learner run`,\n"
        "`hindstream weights follow` and `hindstream gateway run`, then set the agent's OpenAI base URL to\n"
        "http://127.0.0.1:8100/v1 and its model to `policy`. Stop everything with `hindstream down`.",
        markup=False,
        highlight=False,
    )


def _answers(outcome: Outcome) -> Table:
    table = Table(title="The same questions, before and after", title_justify="left", show_lines=True)
    table.add_column("question")
    table.add_column("before")
    table.add_column("after")
    step = max(1, len(outcome.after) // _SHOWN_ANSWERS)
    for before, after in list(zip(outcome.before, outcome.after, strict=True))[::step][:_SHOWN_ANSWERS]:
        table.add_row(after.question, _said(before), _said(after))
    return table


def _said(answered: Answered) -> str:
    return f"{answered.answer}\n[dim]({answered.opinion})[/dim]"
