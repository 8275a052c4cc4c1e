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
from hindstream.recipes import load_recipe
from hindstream.settings import Settings, load_settings
from hindstream.stack import model

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """Turn micro-batches into weight versions."""


@app.command()
def run(
    stop_after: Annotated[int | None, typer.Option(help="End after this many micro-batches.", min=1)] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Train until stopped (Ctrl-C or SIGTERM); the micro-batch in hand is finished first."""
    console = Console(stderr=True)
    _log_to(console, log_level)
    from hindstream.dashboard.watchers import watchers
    from learner.config import LearnerConfig
    from learner.errors import LearnerStopped
    from learner.service import run_learner
    from schemas.database import in_words

    settings = load_settings()
    endpoints = resolve_endpoints(settings)
    config = LearnerConfig(
        bootstrap_servers=endpoints.bootstrap_servers,
        database_url=endpoints.database_url,
        run=settings.run.name,
        policy=settings.run.policy,
        model_dir=base_model(settings),
        weights_dir=settings.weights_dir,
        device=settings.learner.device,
        dtype=settings.learner.dtype,
        threads=settings.learner.threads,
        tokens_per_forward=settings.learner.tokens_per_forward,
        keep_last=settings.learner.keep_last,
        state_every=settings.learner.state_every,
        recipe_digest=load_recipe(settings.run.recipe).digest(),
        stop_after=stop_after,
    )
    ensure_topics(config.bootstrap_servers, settings.kafka.partitions, settings.kafka.retention_hours)
    try:
        run_learner(config, watchers=watchers(settings, console))
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


def base_model(settings: Settings) -> Path:
    """The directory of version 0's model, rebuilt from its wheel on first use."""
    return model.ensure(settings.model, settings.cache, lambda line: typer.echo(line))
