"""The figures of a run as a table for a terminal."""

from __future__ import annotations

from rich.table import Table

from hindstream.dashboard.figures import Figures, Step, VersionReward
from schemas.states import DROP_REASONS

_BARS = " ▁▂▃▄▅▆▇█"


def share(part: float, whole: float) -> str:
    """`part` of `whole` as a percentage, or a dash where there is no whole."""
    return f"{100 * part / whole:.0f} %" if whole else "–"


def _optional(value: float | None, pattern: str = "{}") -> str:
    return "–" if value is None else pattern.format(value)


def bars(values: list[float]) -> str:
    """Shares in [0, 1] as one bar a value."""
    return "".join(_BARS[round(max(0.0, min(1.0, value)) * (len(_BARS) - 1))] for value in values)


def figures_table(title: str, figures: Figures, rewards: list[VersionReward], steps: list[Step]) -> Table:
    """One table: what came in, what was made of it, what was learned, what was dropped and why."""
    table = Table(title=title, title_justify="left", show_header=False, expand=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row(
        "turns",
        f"{figures.turns_seen} seen = {figures.trained} trained + {figures.ready} ready "
        f"+ {figures.pending} pending + {figures.dropped} dropped"
        + (f"   [red]{figures.balance} UNACCOUNTED[/red]" if figures.balance else ""),
    )
    table.add_row(
        "rewards",
        f"{figures.rewards}, {share(figures.rewards_positive, figures.rewards)} positive",
    )
    table.add_row("hints", f"{figures.hints} accepted, {figures.teacher_scores} scored by the teacher")
    table.add_row("micro-batches", str(figures.micro_batches))
    table.add_row(
        "weight versions",
        f"{figures.weight_versions} made, newest {_optional(figures.newest_version)}, "
        f"served {_optional(figures.served_version)}",
    )
    table.add_row(
        "staleness",
        f"mean {_optional(figures.mean_staleness, '{:.2f}')}, max {_optional(figures.max_staleness)} versions",
    )
    if steps:
        metrics = steps[-1].metrics
        table.add_row("last step", _step_line(steps[-1], metrics))
    if rewards:
        shown = rewards[-24:]
        table.add_row(
            "liked by version",
            f"{bars([r.liked for r in shown])}  v{shown[0].version} {share(shown[0].liked, 1)} → "
            f"v{shown[-1].version} {share(shown[-1].liked, 1)}, "
            f"{shown[0].tokens:.0f} → {shown[-1].tokens:.0f} tokens an answer",
        )
    for reason, turns in figures.drops.items():
        table.add_row(f"dropped: {reason}", f"{turns}  ({DROP_REASONS[reason]})")
    if figures.dead_letters:
        table.add_row("[red]dead letters[/red]", str(figures.dead_letters))
    return table


_IN_THE_STEP = (("reward_mean", "reward {:+.2f}"), ("kl_k3", "kl {:.4f}"), ("entropy", "entropy {:.2f}"))
"""What of a step's metrics tells at a glance whether learning goes well; see docs/metrics.md."""


def _step_line(step: Step, metrics: dict[str, float | None]) -> str:
    if step.skipped_reason:
        return f"[yellow]no step: {step.skipped_reason}[/yellow]"
    parts = [f"{step.samples_trained} turns", f"{step.tokens} tokens", f"{step.seconds:.1f} s"]
    if step.tokens and step.seconds > 0:
        parts.append(f"{step.tokens / step.seconds:.0f} tokens/s")
    for name, pattern in _IN_THE_STEP:
        value = metrics.get(name)
        if value is not None:
            parts.append(pattern.format(value))
    return ", ".join(parts)
