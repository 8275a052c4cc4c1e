"""`hindstream gateway run`: the OpenAI-compatible server that records conversations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import replace
from typing import Annotated

import typer
import uvloop

from hindstream.cli.gateway_security import keys_url, redaction_config, tls_config, user_secret
from hindstream.cli.topics import ensure_topics
from hindstream.endpoints import Resolved, resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import Settings, load_settings
from producers.gateway.access.guard import NoKeys
from producers.gateway.app import serve
from producers.gateway.config import GatewayConfig
from producers.gateway.redaction.rules import BadRule
from producers.gateway.spool import SpoolInUse
from producers.gateway.tls import BadTls

log = logging.getLogger(__name__)

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """Serve like an OpenAI-compatible server, and record every turn."""


@app.command()
def run(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen here instead of at gateway.port; 0: a free one.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve until stopped (Ctrl-C or SIGTERM). The broker may be away: turns then wait on disk."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It tells each connection at length, and each second of a broker's absence at ERROR; we say it once.
    for client in ("kafka", "aiokafka"):
        logging.getLogger(client).setLevel(logging.CRITICAL)
    settings = load_settings()
    config = gateway_config(settings, resolve_endpoints(settings))
    if port is not None:
        config = replace(config, port=port)
    try:
        ensure_topics(config.bootstrap_servers, settings.kafka.partitions, settings.kafka.retention_hours)
    except UserError as err:
        log.warning("%s; serving all the same", err)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_stopped(config))
    except (SpoolInUse, NoKeys, BadTls, BadRule) as err:
        raise UserError(str(err)) from None
    except OSError as err:
        raise UserError(
            f"the gateway cannot listen at {config.host}:{config.port} ({err.strerror or err}); set "
            "HINDSTREAM_GATEWAY__PORT, or --port 0 for a free one"
        ) from None


def gateway_config(settings: Settings, endpoints: Resolved) -> GatewayConfig:
    """The configuration of the gateway.

    Raises:
        UserError: an address is missing.
    """
    key = settings.policy.api_key
    return GatewayConfig(
        host=settings.gateway.host,
        port=settings.gateway.port,
        upstream_url=endpoints.policy_url,
        model=settings.policy.model,
        policy=settings.run.policy,
        api_key=key.get_secret_value() if key is not None else None,
        bootstrap_servers=endpoints.bootstrap_servers,
        spool_dir=settings.home_dir / "spool",
        blob_dir=settings.blobs_dir,
        timeout_s=settings.policy.timeout_s,
        access=settings.gateway.access,
        database_url=keys_url(settings, endpoints),
        tls=tls_config(settings),
        redaction=redaction_config(settings),
        user_secret=user_secret(settings),
    )


async def _until_stopped(config: GatewayConfig) -> None:
    serving = asyncio.ensure_future(serve(config))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
