"""What the gateway says of itself and of the server behind it: models, health, readiness, figures, receipts."""

from __future__ import annotations

from aiohttp import web

from producers.gateway.access.callers import caller_of
from producers.gateway.keys import COUNTS, DESK, METRICS, RECORDER, UPSTREAM
from producers.gateway.replying import told
from producers.gateway.upstream import UpstreamFailed, alive

_READY_WITHIN_S = 2.0
"""What a probe waits for the model server: shorter than the 3 s or so that orchestrators allow."""

ROUTES = web.RouteTableDef()


@ROUTES.get("/v1/models")
async def models(request: web.Request) -> web.Response:
    """The server's list."""
    try:
        return web.json_response(await request.app[UPSTREAM].models())
    except UpstreamFailed as err:
        return told(request, err.status, err.error)


@ROUTES.get("/v1/turns/{name}")
async def receipt(request: web.Request) -> web.Response:
    """Where the turns of an answer are recorded, by a turn's id or the answer's: for streams, whose headers go out
    before that is known."""
    found = request.app[DESK].receipts.find(request.match_info["name"])
    if found is None or not caller_of(request).owns(found.session_id):
        message = f"no turn or answer {request.match_info['name'][:80]!r} here; the newest 10,000 are remembered"
        return told(request, 404, {"message": message, "type": "invalid_request_error"})
    return web.json_response(found.plain())


@ROUTES.get("/healthz")
async def health(request: web.Request) -> web.Response:
    """200 as long as the gateway serves, with the state of recording."""
    recorder, counts = request.app[RECORDER], request.app[COUNTS]
    return web.json_response(
        {
            "status": "ok",
            "broker": "away" if recorder.broker_away else "ok",
            "spool_bytes": recorder.spool_bytes,
            "refused_by_broker": recorder.refused_records,
            "redaction_failures": recorder.redaction_failures,
            "turns": {
                "recorded": recorder.counts["true"],
                "spooled": recorder.counts["spooled"],
                "not_recorded": recorder.counts["false"],
                "not_to_be_recorded": recorder.counts["off"],
            },
            **counts,
        }
    )


@ROUTES.get("/readyz")
async def ready(request: web.Request) -> web.Response:
    """200 if a request would be answered and recorded now; else 503 with what is missing."""
    recorder = request.app[RECORDER]
    checks = {
        "model_server": await alive(request.app[UPSTREAM], _READY_WITHIN_S),
        "recorder": recorder.alive,
        "spool": not recorder.losing,
    }
    good = all(checks.values())
    return web.json_response({"status": "ready" if good else "not ready", **checks}, status=200 if good else 503)


@ROUTES.get("/metrics")
async def figures(request: web.Request) -> web.Response:
    """Prometheus' text format."""
    return web.Response(body=request.app[METRICS].text(), headers={"Content-Type": "text/plain; version=0.0.4"})
