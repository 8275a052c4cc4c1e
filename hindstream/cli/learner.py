"""`hindstream learner run`: micro-batches become weight versions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from sqlalchemy.exc import DBAPIError

from hindstream.cli.topics import ensure_topics
from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.learning import base_model, learner_config
from hindstream.recipes import run_recipe
from hindstream.settings import load_settings, torchrun_ranks
from schemas.database import in_words

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """Turn micro-batches into weight versions."""


_DETERMINISTIC = (
    "Refuse every operation whose result may differ between two runs, so that `hindstream weights rebuild` finds the "
    "same bytes on one kind of GPU too; on a CPU a fixed number of threads is enough for that. What it costs on a GPU: "
    "sums that are otherwise added in any order (the embeddings' gradient, attention's backward pass) take slower "
    "kernels, and cuBLAS 24 MiB; an operation without such a kernel ends the learner with its name."
)


@app.command()
def run(
    stop_after: Annotated[int | None, typer.Option(help="End after this many micro-batches.", min=1)] = None,
    deterministic: Annotated[
        bool | None, typer.Option("--deterministic/--fast", help=_DETERMINISTIC, show_default="the setting's")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Train until stopped (Ctrl-C or SIGTERM); the micro-batch in hand is finished first.

    On several GPUs: torchrun --nproc-per-node N -m hindstream learner run
    """
    console = Console(stderr=True)
    _log_to(console, log_level)
    from hindstream.dashboard.watchers import watchers
    from learner.config import RanksConfig
    from learner.errors import LearnerStopped
    from learner.service import run_learner

    settings, ranks = load_settings(), torchrun_ranks()
    first = ranks is None or ranks.rank == 0  # the others see neither the log nor the database
    endpoints = resolve_endpoints(settings)
    config = learner_config(
        settings,
        endpoints,
        bootstrap_servers=endpoints.bootstrap_servers,
        model_dir=base_model(settings) if first else Path(),
        recipe_digest=run_recipe(settings).digest(),
        stop_after=stop_after,
        deterministic=settings.learner.deterministic if deterministic is None else deterministic,
        ranks=None if ranks is None else RanksConfig(**ranks._asdict()),
    )
    if first:
        ensure_topics(config.bootstrap_servers, settings.kafka.partitions, settings.kafka.retention_hours)
    try:
        run_learner(config, watchers=watchers(settings, console) if first else ())
    except LearnerStopped as err:
        raise UserError(str(err)) from None
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None


def _log_to(console: Console, level: str) -> None:
    """Plain lines; on a terminal through `console`, so that they scroll above the progress."""
    plain = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
        logging.basicConfig(level=level.upper(), format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=level.upper(), format=plain)
    logging.getLogger("kafka").setLevel(logging.WARNING)
