"""Who watches a learner, as the settings say: each a function that opens its watcher, in the order of the pages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from hindstream.dashboard.progress import LearnerProgress
from hindstream.settings import Settings
from learner.watching.steps import StepObserver

log = logging.getLogger(__name__)


def watchers(settings: Settings, console: Console) -> list[Callable[[], StepObserver]]:
    """What `settings` ask for, and the progress where `console` is a terminal."""
    watch = settings.learner.watch
    made: list[Callable[[], StepObserver]] = []
    if console.is_terminal:
        made.append(partial(LearnerProgress, console))
    if watch.prometheus_port is not None:
        made.append(partial(_prometheus, watch.prometheus_host, watch.prometheus_port))
    if watch.tensorboard_dir is not None:
        made.append(partial(_tensorboard, watch.tensorboard_dir.expanduser().resolve()))
    if watch.wandb_project is not None:
        from learner.watching.wandb import WandbRun

        made.append(partial(WandbRun, watch.wandb_project, settings.home_dir / "wandb", watch.wandb_mode))
    return made


def _prometheus(host: str, port: int) -> StepObserver:
    from learner.watching.prometheus import PrometheusEndpoint

    endpoint = PrometheusEndpoint(host, port)
    log.info("metrics for Prometheus at http://%s:%d/metrics", host, endpoint.port)
    return endpoint


def _tensorboard(directory: Path) -> StepObserver:
    from learner.watching.tensorboard import TensorBoardFiles  # takes a second to import

    return TensorBoardFiles(directory)
