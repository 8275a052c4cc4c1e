"""How learning goes, on the terminal where `hindstream learner run` was typed: one line that stays at the bottom."""

from __future__ import annotations

from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hindstream.dashboard.screen import bars
from learner.watching.steps import StepSeen

_CURVE = 24
"""Steps in the reward's curve: as many as the dashboard shows."""


class LearnerProgress:
    """Redraws its line after each step; log lines written through the same console scroll above it. To be used on a
    terminal only."""

    def __init__(self, console: Console) -> None:
        self._rewards: deque[float] = deque(maxlen=_CURVE)
        self._live = Live(Text("waiting for the first micro-batch"), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def observe(self, step: StepSeen) -> None:
        """Show `step`."""
        reward = step.values().get("reward_mean")
        if reward is not None:
            self._rewards.append(reward)
        self._live.update(self.render(step), refresh=True)

    def close(self) -> None:
        """Leave the last line on the terminal."""
        self._live.stop()

    def render(self, step: StepSeen) -> Text:
        """The line; a dash where something cannot be said."""
        values = step.values()

        def shown(name: str, pattern: str) -> str:
            return pattern.format(values[name]) if name in values else "–"

        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{step.run}  micro-batch {step.seq} → ", "bold")
        if step.version is None:
            text.append(f"no step ({step.skipped_reason})", "yellow")
        else:
            text.append(f"version {step.version}", "bold green")
        text.append(f"  {step.samples_trained} trained")
        if step.drops:
            text.append(f", {sum(step.drops.values())} dropped", "yellow")
        text.append(f"  {shown('tokens_per_second', '{:.0f}')} tokens/s")
        text.append(f"  reward {shown('reward_mean', '{:+.2f}')} {bars([(r + 1) / 2 for r in self._rewards])}")
        text.append(f"  kl {shown('kl_k3', '{:.4f}')}  staleness {shown('staleness_mean', '{:.1f}')}")
        return text
