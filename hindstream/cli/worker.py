"""`hindstream worker run`: record, link, judge, hint, teach, batch and relay, in one process or spread over several."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError

from hindstream.cli.topics import ensure_topics
from hindstream.endpoints import Resolved, resolve_endpoints
from hindstream.errors import UserError
from hindstream.recipes import run_recipe
from hindstream.settings import ModelServer, Settings, load_settings
from processors.batcher import BatcherConfig
from processors.config import ROLES, RecorderConfig, Role, RunConfig, WorkerConfig, WorkerMisconfigured
from processors.evaluators.config import EvaluatorsConfig, ServerConfig
from processors.evaluators.queue import Signal
from processors.idle import IdleConfig
from processors.letter_retries import LettersConfig
from processors.letters import LetterPolicy
from processors.relay import RelayConfig
from processors.runs import RunMismatch
from processors.worker import run_worker
from schemas.database import in_words

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

_IDLE_LOOKS = 10
"""Silent sessions are looked for this often within the time after which they are closed, so at most a tenth late."""
_IDLE_EVERY_S = 60.0
"""And never less often than this."""


@app.callback()
def root() -> None:
    """Turn events into rows, rewards, hints, teacher scores and micro-batches."""


@app.command()
def run(
    roles: Annotated[str, typer.Option(help=f"Only these, separated by commas: {', '.join(ROLES)}.")] = "",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Work until stopped (Ctrl-C or SIGTERM). Any number of workers may run, here or on other machines.

    Exit code 0 after a stop, 3 when a role cannot go on: the last lines say why, and nothing is lost.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # These two tell each rebalance and each connection at length; their warnings stay.
    for chatty in ("faust", "mode", "aiokafka", "kafka"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
    settings = load_settings()
    endpoints = resolve_endpoints(settings)
    config = worker_config(settings, endpoints, _roles(roles))
    if "agents" in config.roles or "relay" in config.roles:
        ensure_topics(config.bootstrap_servers, settings.kafka.partitions, settings.kafka.retention_hours)
    try:
        code = run_worker(config)
    except (WorkerMisconfigured, RunMismatch) as err:
        raise UserError(str(err)) from None
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None
    raise typer.Exit(code)


def worker_config(settings: Settings, endpoints: Resolved, roles: tuple[Role, ...] = ROLES) -> WorkerConfig:
    """The configuration of a worker with these roles. Only the addresses that they need are asked for.

    Raises:
        UserError: an address is missing, or the recipe cannot work.
    """
    servers = endpoints.bootstrap_servers
    return WorkerConfig(
        bootstrap_servers=servers,
        database_url=endpoints.database_url,
        pool_size=settings.database.pool_size,
        roles=roles,
        run=RunConfig(run=settings.run.name, policy=settings.run.policy, recipe=run_recipe(settings)),
        recorder=RecorderConfig(
            batch_events=settings.worker.batch_events,
            dead_letter_limit=settings.dead_letters.in_a_row,
            dead_letter_window=settings.dead_letters.window,
            dead_letter_share=settings.dead_letters.share,
            data_dir=settings.home_dir / "worker",
            blob_dir=settings.blobs_dir,
        ),
        evaluators=evaluators_config(settings, endpoints) if "evaluators" in roles else None,
        batcher=BatcherConfig(),
        relay=RelayConfig(bootstrap_servers=servers),
        idle=IdleConfig(
            idle_s=settings.worker.idle_close_s,
            every_s=min(_IDLE_EVERY_S, settings.worker.idle_close_s / _IDLE_LOOKS),
        ),
        letters=LettersConfig(bootstrap_servers=servers, policy=letter_policy(settings)),
    )


def letter_policy(settings: Settings) -> LetterPolicy:
    """What is done with dead letters."""
    said = settings.dead_letters
    return LetterPolicy(
        actions=said.actions,
        max_replays=said.max_replays,
        retry_after_s=said.retry_after_s,
        keep_days=said.keep_days,
    )


def evaluators_config(
    settings: Settings,
    endpoints: Resolved,
    *,
    judge: bool = True,
    teacher: bool = True,
    runs: tuple[str, ...] | None = None,
    signals: tuple[Signal, ...] = ("reward", "hint", "teacher"),
) -> EvaluatorsConfig:
    """The configuration of an evaluator service; only the servers that it needs are looked for.

    Raises:
        UserError: a server that it needs is not there.
    """
    return EvaluatorsConfig(
        worker=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        judge=_server(endpoints.judge_url, settings.judge) if judge else None,
        teacher=_server(endpoints.teacher_url, settings.teacher) if teacher else None,
        policy=_server(endpoints.policy_url, settings.policy) if teacher else None,
        runs=runs,
        signals=signals,
        tokenizer=settings.model,
        concurrency=settings.worker.concurrency,
        lease_s=settings.worker.lease_s,
    )


def _server(url: str, server: ModelServer) -> ServerConfig:
    return ServerConfig(
        url=url,
        model=server.model,
        timeout_s=server.timeout_s,
        concurrency=server.concurrency,
        chunk_tokens=server.chunk_tokens,
        place_requests=server.place_requests,
        api_key=server.api_key.get_secret_value() if server.api_key else None,
    )


def _roles(listed: str) -> tuple[Role, ...]:
    if not listed:
        return ROLES
    names = [name.strip() for name in listed.split(",") if name.strip()]
    unknown = [name for name in names if name not in ROLES]
    if unknown or not names:
        raise UserError(f"no role {', '.join(unknown) or 'given'}; there are: {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in names)
