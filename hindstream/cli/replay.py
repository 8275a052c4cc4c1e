"""`hindstream replay`: what another recipe would have made of the same log."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from sqlalchemy.exc import DBAPIError

from hindstream.cli.topics import ensure_topics
from hindstream.cli.worker import evaluators_config
from hindstream.endpoints import Resolved, resolve_endpoints
from hindstream.errors import UserError
from hindstream.recipes import load_recipe
from hindstream.replay.files import FileLog
from hindstream.replay.learning import ReplayLearner
from hindstream.replay.screen import ReplayScreen
from hindstream.settings import Settings, load_settings
from hindstream.stack import model
from processors.evaluators.deciding import asks_a_model
from processors.evaluators.queue import Signal
from processors.relay import RelayConfig
from processors.replay.log import LogAway, LogGone
from processors.replay.progress import ReplayMismatch
from processors.replay.selection import Selection
from processors.replay.service import Log, Outcome, ReplayConfig, open_replay, run_replay
from processors.replay.sources import TopicLog
from processors.runs import RunMismatch
from producers.importers import IMPORTERS, RefusedRow
from producers.importers.finding import NotImportable, find
from schemas.claim_check import DirectoryBlobStore
from schemas.database import in_words
from schemas.recipes import InvalidRecipe, Recipe
from schemas.states import STOP_AFTER

INTERRUPTED = 130
"""What a shell expects of a command that Ctrl-C ended."""


def replay(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE...]", help="Files of any known format; none: the log of events itself."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the run; the same name again goes on with it.")] = "",
    recipe: Annotated[str, typer.Option("--recipe", help="A preset, or a TOML or JSON file.")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Name of the policy that it trains; default: the run's name.")] = "",
    since: Annotated[str | None, typer.Option(help="From this time on, by the log's clock (ISO 8601).")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    offsets: Annotated[
        str | None, typer.Option(help="Of these partitions only these offsets: 0:0-5000,3:10-20.")
    ] = None,
    sessions: Annotated[str | None, typer.Option(help="Only these sessions: ids by commas, or @FILE of lines.")] = None,
    sample: Annotated[float, typer.Option(help="Share of the sessions, above 0 and at most 1.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Which share.")] = 0,
    stop_after: Annotated[str, typer.Option(help=f"How far: {', '.join(STOP_AFTER)}.")] = "weights",
    speed: Annotated[str, typer.Option(help="max, real, or times real such as 10x.")] = "max",
    format_name: Annotated[str | None, typer.Option("--format", help="Format of the files.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Rerun the log, or files, under another recipe and another name. Live runs are not touched.

    Ctrl-C stops it; the same command again goes on where it stopped. Answers that judges and teachers gave before are
    taken from the records, so only what is new is asked.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not name or not recipe:
        raise UserError("give the replay a --name and a --recipe (`hindstream recipes list` shows the presets)")
    if stop_after not in STOP_AFTER:
        raise UserError(f"--stop-after is {stop_after!r}; it is one of {', '.join(STOP_AFTER)}")
    settings = load_settings()
    endpoints = resolve_endpoints(settings)
    wanted = load_recipe(recipe, set_ or ())
    selection = Selection(
        since=since, until=until, offsets=_offsets(offsets), sessions=_sessions(sessions), sample=sample, seed=seed
    )
    blobs = DirectoryBlobStore(settings.blobs_dir)
    source = _files(files, format_name, blobs) if files else TopicLog(endpoints.bootstrap_servers)
    config = ReplayConfig(
        run=name,
        policy=policy or name,
        recipe=wanted,
        selection=selection,
        stop_after=stop_after,  # type: ignore[arg-type]  # checked above
        database_url=endpoints.database_url,
        evaluators=_evaluators(settings, endpoints, wanted, name, stop_after),
        relay=RelayConfig(bootstrap_servers=endpoints.bootstrap_servers) if stop_after == "weights" else None,
        blobs=blobs,
        speed=_speed(speed),
    )
    outcome = _run(settings, endpoints, config, source)
    _report(outcome, config)


def _run(settings: Settings, endpoints: Resolved, config: ReplayConfig, source: Log) -> Outcome:
    try:
        made = open_replay(config, source)
        typer.echo(f"replay {config.run} {'begins' if made else 'goes on'}: recipe {config.recipe.name}", err=True)
        if config.stop_after != "weights":
            return asyncio.run(_until_done(config, source))
        ensure_topics(endpoints.bootstrap_servers, settings.kafka.partitions, settings.kafka.retention_hours)
        with ReplayLearner(settings, endpoints, config) as learner:
            return asyncio.run(_until_done(config, source, learner))
    except (RunMismatch, ReplayMismatch, InvalidRecipe, LogAway, LogGone, ValueError) as err:
        raise UserError(str(err)) from None
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None


async def _until_done(config: ReplayConfig, source: Log, learner: ReplayLearner | None = None) -> Outcome:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with ReplayScreen(trains=learner is not None) as screen:

        def observe(counts: Any) -> None:
            screen.show(counts)
            if learner is not None:
                learner.check()

        return await run_replay(config, source, stop, observe)


def _report(outcome: Outcome, config: ReplayConfig) -> None:
    if outcome.fault is not None:
        raise UserError(f"the replay cannot go on: {outcome.fault}; what is done is kept")
    console, counts = Console(), outcome.counts
    console.print(
        f"{counts.records} of {counts.records_total} records read, {counts.turns} turns taken, "
        f"{counts.answered} of {counts.asked} evaluations final, {counts.batched} micro-batches, "
        f"{counts.trained} trained",
        highlight=False,
    )
    if not outcome.finished:
        typer.echo("interrupted; the same command goes on where it stopped", err=True)
        raise typer.Exit(INTERRUPTED)
    run = escape(config.run)
    console.print(f"""hindstream sql "SELECT * FROM ledger WHERE run = '{run}'\"""", highlight=False)
    console.print(f"hindstream compare RUN {run}   (`hindstream runs list` shows the others)", highlight=False)


def _evaluators(settings: Settings, endpoints: Resolved, recipe: Recipe, run: str, stop_after: str) -> Any:
    """Model servers are looked for only where the recipe may ask one."""
    signals: tuple[Signal, ...] = ("reward",) if stop_after == "rewards" else ("reward", "hint", "teacher")
    config = evaluators_config(
        settings,
        endpoints,
        judge=asks_a_model(recipe),
        teacher=recipe.teacher is not None and "teacher" in signals,
        runs=(run,),
        signals=signals,
    )
    if config.teacher is None or recipe.hint is not None:
        return config
    # Without a hint nobody but the teacher is asked: the policy's tokenizer is read from its files.
    base = model.ensure(settings.model, settings.cache, lambda words: typer.echo(words, err=True))
    return replace(config, policy=None, tokenizer=base)


def _files(files: list[str], format_name: str | None, blobs: DirectoryBlobStore) -> FileLog:
    try:
        found = find(files, IMPORTERS, format_name)
    except NotImportable as err:
        raise UserError(str(err)) from None
    except OSError as err:
        raise UserError(f"{err.filename}: cannot be opened ({err.strerror})") from None
    if not found.files:
        raise UserError(f"there is nothing to replay in {', '.join(files)}")
    return FileLog(found.files, blobs, _tell_refused)


def _tell_refused(path: Path, row: RefusedRow) -> None:
    typer.echo(f"{path}:{row.line}: refused: {row.reason}", err=True)


def _speed(text: str) -> float | None:
    if text in ("max", "real"):
        return None if text == "max" else 1.0
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not speed > 0:
        raise UserError(f"--speed is {text!r}; it is max, real, or times real such as 10x")
    return speed


def _offsets(text: str | None) -> dict[str, tuple[int, int]] | None:
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        partition, _, bounds = part.strip().partition(":")
        first, dash, last = bounds.partition("-")
        if not (partition.isdigit() and first.isdigit() and dash and last.isdigit()):
            raise UserError(f"--offsets: {part.strip()!r} is no range; write partition:first-last, such as 0:0-5000")
        found[partition] = (int(first), int(last) + 1)
    return found


def _sessions(text: str | None) -> list[str] | None:
    if text is None:
        return None
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except OSError as err:
            raise UserError(f"--sessions: {text[1:]} cannot be read ({err.strerror})") from None
        return sorted({line.strip() for line in lines if line.strip()})
    return sorted({part.strip() for part in text.split(",") if part.strip()})
