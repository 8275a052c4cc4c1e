"""The gateway's HTTP: which path is whose, how it starts and stops, and how faults are told."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from producers.gateway.access.guard import Guard
from producers.gateway.chat_api import chat_completions
from producers.gateway.completions import completions
from producers.gateway.config import GatewayConfig
from producers.gateway.conversations import Conversations
from producers.gateway.desk import Desk, TurnFailed
from producers.gateway.feedback_api import feedback
from producers.gateway.idle import IdleConnections
from producers.gateway.keys import CONFIG, CONVERSATIONS, COUNTS, DESK, IDLE, METRICS, RECORDER, UPSTREAM
from producers.gateway.messages_api import count_tokens, messages
from producers.gateway.metrics import Metrics
from producers.gateway.quiet import server_log
from producers.gateway.recorder import Recorder
from producers.gateway.refusal import BadRequest
from producers.gateway.replying import END, told
from producers.gateway.responses_api import one_response, responses
from producers.gateway.states import ROUTES as STATES
from producers.gateway.tls import Tls
from producers.gateway.upstream import Upstream

log = logging.getLogger(__name__)

_SHUTDOWN_S = 30.0
"""How long a stop waits for requests in flight; then they are cancelled and recorded as aborted."""

_TALK: dict[str, Handler] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/messages": messages,
    "/v1/responses": responses,
}
"""The POST paths that ask the policy."""


def create_app(config: GatewayConfig) -> web.Application:
    """The application. Run it with `handler_cancellation=True`, as `running` does: only then a caller who leaves
    ends the work that was for him.

    Raises:
        SpoolInUse: another gateway has the spool directory.
    """
    guard = Guard(config.access, config.host, config.database_url, config.spool_dir.parent / "gateway-keys.json")
    idle = IdleConnections(config.idle_s)
    middlewares = [idle.middleware(), _counted, _told, guard.middleware()]
    app = web.Application(client_max_size=config.max_body_bytes, middlewares=middlewares)
    app[CONFIG], app[IDLE] = config, idle
    app[RECORDER] = Recorder(config)
    app[METRICS] = Metrics(app[RECORDER])
    app[DESK] = Desk(config, app[RECORDER], app[METRICS])
    app[CONVERSATIONS] = Conversations()
    app[COUNTS] = {"requests": 0, "derived_sessions": 0, "refused": 0, "aborted": 0, "errors": 0}
    app.cleanup_ctx.append(guard.running)
    app.cleanup_ctx.append(_services)
    for path, handler in _TALK.items():
        app.router.add_post(path, handler)
    app.router.add_post("/v1/messages/count_tokens", count_tokens)
    app.router.add_post("/v1/feedback", feedback)
    app.router.add_get("/v1/responses/{name}", one_response)
    app.router.add_routes(STATES)
    return app


@asynccontextmanager
async def running(config: GatewayConfig) -> AsyncIterator[str]:
    """A gateway that listens; gives its address, http://host:port, or https:// with TLS.

    Raises:
        OSError: the port is taken.
        SpoolInUse: another gateway has the spool directory.
        NoKeys: it would be open to others than this machine.
        BadTls: the certificate or its key is none.
        BadRule: a redaction rule is none.
    """
    tls = Tls(config.tls) if config.tls is not None else None
    app = create_app(config)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_S,
        access_log=None,
        logger=server_log,
    )
    watching = [asyncio.ensure_future(tls.watch())] if tls is not None else []
    try:
        await runner.setup()
        assert runner.server is not None  # there is one since it was set up
        watching.append(asyncio.ensure_future(app[IDLE].watch(runner.server)))
        site = web.TCPSite(runner, config.host, config.port, ssl_context=tls.context if tls is not None else None)
        await site.start()
        scheme, (host, port) = "https" if tls is not None else "http", runner.addresses[0][:2]
        yield f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    finally:
        for task in watching:
            task.cancel()
        await runner.cleanup()


async def serve(config: GatewayConfig) -> None:
    """Serve until cancelled; requests in flight are finished and everything is recorded before it ends."""
    async with running(config) as address:
        print(f"gateway at {address}/v1, in front of {config.upstream_url}", flush=True)
        await asyncio.Event().wait()


async def _services(app: web.Application) -> AsyncIterator[None]:
    config, recorder = app[CONFIG], app[RECORDER]
    recorder.start()
    upstream = Upstream(config.upstream_url, model=config.model, api_key=config.api_key, timeout_s=config.timeout_s)
    async with upstream:
        app[UPSTREAM] = upstream
        yield
    await recorder.stop()


@web.middleware
async def _counted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count requests to the policy, how they ended and how long they took."""
    if request.path not in _TALK:
        return await handler(request)
    counts, metrics, clock = request.app[COUNTS], request.app[METRICS], asyncio.get_running_loop().time
    counts["requests"] += 1
    began_at, end = clock(), "aborted"
    try:
        with metrics.in_flight.track_inprogress():
            response = await handler(request)
        status = response.status
        end = request.get(END) or ("ok" if status < 400 else "refused" if status < 500 else "error")
        return response
    finally:
        if end != "ok":
            counts["errors" if end == "error" else end] += 1
        metrics.requests.labels(request.path, end).inc()
        metrics.seconds.labels(request.path).observe(clock() - began_at)


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in the dialect's form, those of the HTTP server and our own faults too."""
    try:
        return await handler(request)
    except BadRequest as err:
        return told(request, err.status, {"message": str(err), "type": "invalid_request_error", "param": err.field})
    except TurnFailed as err:
        headers = None
        if err.receipt is not None:
            await err.receipt.settled()
            headers = err.receipt.headers()
        return told(request, err.failure.status, err.failure.error, headers)
    except web.HTTPException as err:
        what: dict[str, object] = {
            "message": f"{request.method} {request.path}: {err.reason}",
            "type": "invalid_request_error",
        }
        return told(request, err.status, what, {"Allow": err.headers["Allow"]} if "Allow" in err.headers else None)
    except ConnectionResetError:
        request[END] = "aborted"  # the caller left while he was written to; what he had asked for has been ended
        raise
    except Exception as err:
        # Without the error's own words, which may be the request's: only where it happened.
        where = "".join(traceback.format_tb(err.__traceback__))
        log.error("%s %s failed: %s\n%s", request.method, _route(request), type(err).__name__, where)  # noqa: TRY400
        return told(request, 500, {"message": "the gateway failed; its log says where", "type": "server_error"})


def _route(request: web.Request) -> str:
    """The path as it is declared: what a caller put in it is not for the log."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "an unknown path"
