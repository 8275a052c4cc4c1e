"""The gateway's HTTP: what comes in is checked, asked upstream, recorded and answered, in this order."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from producers.gateway.config import GatewayConfig
from producers.gateway.recorder import Recorded, Recorder
from producers.gateway.requests import BadRequest, ChatRequest, read_request
from producers.gateway.sessions import Place, Siblings, locate
from producers.gateway.turns import Exchange, Outcome, events_of, failed
from producers.gateway.upstream import Upstream, UpstreamFailed
from schemas.envelope import utc_now

log = logging.getLogger(__name__)

_SHUTDOWN_S = 30.0
"""How long a stop waits for requests in flight; then they are cancelled and recorded as aborted."""

_CONFIG = web.AppKey("config", GatewayConfig)
_UPSTREAM = web.AppKey("upstream", Upstream)
_RECORDER = web.AppKey("recorder", Recorder)
_SIBLINGS = web.AppKey("siblings", Siblings)
_COUNTS: web.AppKey[dict[str, int]] = web.AppKey("counts", dict)


def create_app(config: GatewayConfig) -> web.Application:
    """The application. Run it with `handler_cancellation=True`, as `running` does: only then a caller who leaves
    ends the work that was for him.

    Raises:
        SpoolInUse: another gateway has the spool directory.
    """
    app = web.Application(client_max_size=config.max_body_bytes, middlewares=[_told])
    app[_CONFIG] = config
    app[_RECORDER] = Recorder(config)
    app[_SIBLINGS] = Siblings()
    app[_COUNTS] = {"requests": 0, "derived_sessions": 0, "refused": 0, "aborted": 0, "errors": 0}
    app.cleanup_ctx.append(_services)
    app.router.add_post("/v1/chat/completions", _chat)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/healthz", _health)
    return app


@asynccontextmanager
async def running(config: GatewayConfig) -> AsyncIterator[str]:
    """A gateway that listens; gives its address, http://host:port.

    Raises:
        OSError: the port is taken.
        SpoolInUse: another gateway has the spool directory.
    """
    runner = web.AppRunner(create_app(config), handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def serve(config: GatewayConfig) -> None:
    """Serve until cancelled; requests in flight are finished and everything is recorded before it ends."""
    async with running(config) as address:
        print(f"gateway at {address}/v1, in front of {config.upstream_url}", flush=True)
        await asyncio.Event().wait()


async def _services(app: web.Application) -> AsyncIterator[None]:
    config, recorder = app[_CONFIG], app[_RECORDER]
    recorder.start()
    upstream = Upstream(config.upstream_url, model=config.model, api_key=config.api_key, timeout_s=config.timeout_s)
    async with upstream:
        app[_UPSTREAM] = upstream
        yield
    await asyncio.to_thread(recorder.stop)


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in OpenAI's form, those of the HTTP server and our own faults too."""
    try:
        return await handler(request)
    except web.HTTPException as err:
        what: dict[str, object] = {
            "message": f"{request.method} {request.path}: {err.reason}",
            "type": "invalid_request_error",
        }
        headers = {"Allow": err.headers["Allow"]} if "Allow" in err.headers else None
        return _error(err.status, what, headers)
    except Exception as err:
        # Without the error's own words, which may be the request's: only where it happened.
        where = "".join(traceback.format_tb(err.__traceback__))
        log.error("%s %s failed: %s\n%s", request.method, request.path, type(err).__name__, where)  # noqa: TRY400
        return _error(500, {"message": "the gateway failed; its log says where", "type": "server_error"})


async def _chat(request: web.Request) -> web.Response:
    counts = request.app[_COUNTS]
    counts["requests"] += 1
    try:
        chat = await read_request(request, request.app[_CONFIG].max_body_bytes)
    except BadRequest as err:
        counts["refused"] += 1
        return _error(err.status, {"message": str(err), "type": "invalid_request_error", "param": err.field})
    if chat.derived:
        counts["derived_sessions"] += 1
    place = locate(chat.session_id, chat.messages, request.app[_SIBLINGS], chat.next_state_kind)
    started_at = utc_now()
    try:
        answer = await request.app[_UPSTREAM].ask(chat.body)
    except asyncio.CancelledError:
        counts["aborted"] += 1
        _submit(request, chat, place, failed("aborted"), started_at)
        raise
    except UpstreamFailed as err:
        if err.refused:
            counts["refused"] += 1
            return _error(err.status, err.error)
        counts["errors"] += 1
        log.warning("session %s: %s", chat.session_id, err)
        turn_id, recording = _submit(request, chat, place, failed("error"), started_at)
        return _error(err.status, err.error, _headers(chat, turn_id, await recording))
    turn_id, recording = _submit(request, chat, place, answer.outcome, started_at)
    return web.json_response(answer.completion, headers=_headers(chat, turn_id, await recording))


def _submit(
    request: web.Request, chat: ChatRequest, place: Place, outcome: Outcome, started_at: str
) -> tuple[str, asyncio.Future[Recorded]]:
    """The turn's id, and where it is recorded once that is so, even if nobody waits for it."""
    exchange = Exchange(
        session_id=chat.session_id,
        kind=chat.kind,
        body=chat.body,
        place=place,
        outcome=outcome,
        policy=request.app[_CONFIG].policy,
        started_at=started_at,
        ended_at=utc_now(),
        closes=chat.closes,
    )
    turn_id, events = events_of(exchange, request.app[_SIBLINGS])
    return turn_id, asyncio.wrap_future(request.app[_RECORDER].submit(events))


async def _models(request: web.Request) -> web.Response:
    try:
        return web.json_response(await request.app[_UPSTREAM].models())
    except UpstreamFailed as err:
        return _error(err.status, err.error)


async def _health(request: web.Request) -> web.Response:
    """200 as long as the gateway serves, with the state of recording."""
    recorder = request.app[_RECORDER]
    counts = request.app[_COUNTS]
    return web.json_response(
        {
            "status": "ok",
            "broker": "away" if recorder.broker_away else "ok",
            "spool_bytes": recorder.spool_bytes,
            "refused_by_broker": recorder.refused_records,
            "turns": {
                "recorded": recorder.counts["true"],
                "spooled": recorder.counts["spooled"],
                "not_recorded": recorder.counts["false"],
            },
            **counts,
        }
    )


def _headers(chat: ChatRequest, turn_id: str, recorded: Recorded) -> dict[str, str]:
    return {"X-Session-Id": chat.session_id, "X-Turn-Id": turn_id, "X-Hindstream-Recorded": recorded}


def _error(status: int, error: dict[str, object], headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"code": status, "param": None, **error}}, status=status, headers=headers)
