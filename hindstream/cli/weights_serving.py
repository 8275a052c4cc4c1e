"""`hindstream weights follow|serve`: a server at the newest version, or at one."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError

from hindstream.cli.topics import ensure_topics
from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import Settings, load_settings
from schemas.database import in_words

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def follow(
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Keep the policy server at the newest version until stopped (Ctrl-C or SIGTERM). Requests are never refused."""
    _follow(log_level)


@app.command()
def serve(
    version: Annotated[int, typer.Option(help="The version to serve, whatever is newest.")],
    url: Annotated[str, typer.Option(help="Base address of the server. Default: the teacher's.")] = "",
    model: Annotated[str, typer.Option(help="Its name of the model. Default: the teacher's.")] = "",
    beside: Annotated[bool, typer.Option(help="Load an adapter under the name MODEL@VERSION, and end.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Keep one server at one version until stopped, for a recipe whose teacher is pinned. The version's files are kept
    as long as that server serves no other. With --beside what the server serves otherwise stays."""
    from learner.stored import stored_version

    settings = load_settings()
    with _transaction() as connection:
        try:
            stored_version(connection, settings.weights_dir, settings.run.policy, version)
        except LookupError as err:
            raise UserError(f"{err}; `hindstream weights list` shows those it has") from None
    server = (url or settings.teacher.url or "").rstrip("/")
    if not server:
        raise UserError(
            "no server to load the version into: give --url, or set HINDSTREAM_TEACHER__URL. A pinned teacher needs a "
            "server of its own, since the policy's moves on"
        )
    if beside:
        _load_beside(settings, version, server, model or settings.teacher.model)
        return
    known = (settings.policy.url, resolve_endpoints(settings).stack.endpoints().policy_url)
    if server in {address.rstrip("/") for address in known if address}:
        raise UserError(f"{server} is the policy's server, which serves the newest version: give --url another one")
    _follow(log_level, version, server, model or settings.teacher.model)


def _load_beside(settings: Settings, version: int, url: str, model: str) -> None:
    from learner.beside import load_beside
    from learner.errors import LearnerStopped
    from learner.policy_server import ServerAway, ServerRefused

    key = settings.teacher.api_key
    try:
        with _transaction() as connection:
            name = load_beside(
                connection,
                weights_dir=settings.weights_dir,
                policy=settings.run.policy,
                version=version,
                url=url,
                model=model,
                api_key=key.get_secret_value() if key else None,
            )
    except (LearnerStopped, ServerAway, ServerRefused) as err:
        raise UserError(str(err)) from None
    print(f"{url} serves version {version} as {name}")


def _follow(log_level: str, version: int | None = None, url: str | None = None, model: str | None = None) -> None:
    from learner.config import FollowConfig
    from learner.serving import follow as follow_weights

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    settings = load_settings()
    endpoints = resolve_endpoints(settings)
    key = settings.policy.api_key if version is None else settings.teacher.api_key
    config = FollowConfig(
        bootstrap_servers=endpoints.bootstrap_servers,
        database_url=endpoints.database_url,
        policy=settings.run.policy,
        weights_dir=settings.weights_dir,
        assembled_dir=settings.home_dir / "serving",
        server_url=url or endpoints.policy_url,
        model=model or settings.policy.model,
        api_key=key.get_secret_value() if key else None,
        version=version,
    )
    ensure_topics(config.bootstrap_servers, settings.kafka.partitions, settings.kafka.retention_hours)

    async def until_stopped() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await follow_weights(config, stop)

    try:
        asyncio.run(until_stopped())
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None


@contextmanager
def _transaction() -> Iterator[Connection]:
    engine = create_engine(resolve_endpoints(load_settings()).database_url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()
