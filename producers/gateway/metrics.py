"""Every figure that the gateway gives Prometheus, in one place, each with what a reader should conclude from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from producers.gateway.recorder import Recorded, Recorder
from producers.gateway.turns import Exchange

_PREFIX = "hindstream_gateway"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The figures of one gateway, in a registry of its own: two gateways in one process do not share them."""

    def __init__(self, recorder: Recorder) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            f"{_PREFIX}_requests",
            "Requests by endpoint and end: ok, refused (the caller is at fault), error (the server is), aborted (the "
            "caller left). Errors that rise are the model server's trouble.",
            ["endpoint", "end"],
            registry=self.registry,
        )
        self.derived = Counter(
            f"{_PREFIX}_derived_sessions",
            "Requests that named no session. People who begin alike share one then: send X-Session-Id.",
            registry=self.registry,
        )
        self.turns = Counter(
            f"{_PREFIX}_turns",
            "Turns by kind, end and source of tokens. Tokens none, aborted and error are never trained.",
            ["kind", "finish_reason", "tokens"],
            registry=self.registry,
        )
        self.tokens = Counter(
            f"{_PREFIX}_response_tokens",
            "Response tokens with the engine's ids.",
            registry=self.registry,
        )
        self.seconds = Histogram(
            f"{_PREFIX}_request_seconds",
            "From the request's body to the end of the answer, by endpoint.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.first_byte_seconds = Histogram(
            f"{_PREFIX}_first_byte_seconds",
            "From the request's body to the first byte of a stream, the server's time included.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(f"{_PREFIX}_in_flight", "Requests that are not answered yet.", registry=self.registry)
        self._recorded = Gauge(
            f"{_PREFIX}_recorded",
            "Requests whose turns are on the log (true), on disk (spooled), nowhere (false) or nowhere as asked "
            "(off) since the start. Any false means lost training data.",
            ["state"],
            registry=self.registry,
        )
        for state in recorder.counts:
            self._recorded.labels(state).set_function(partial(_recorded, recorder, state))
        self._gauge("spool_bytes", "Bytes that wait on disk for the broker.", lambda: recorder.spool_bytes)
        self._gauge("broker_away", "1 while the broker does not acknowledge.", lambda: int(recorder.broker_away))
        self._gauge(
            "redaction_failures",
            "Requests that were not recorded because a redaction rule failed or took too long.",
            lambda: recorder.redaction_failures,
        )
        self._gauge("refused_records", "Events that the broker refused for good.", lambda: recorder.refused_records)

    def turn(self, exchange: Exchange) -> None:
        """Count a turn that is about to be recorded."""
        outcome = exchange.outcome
        self.turns.labels(exchange.kind, outcome.finish_reason, outcome.tokens.source).inc()
        self.tokens.inc(len(outcome.tokens.response_ids))

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, says: str, value: Callable[[], float]) -> None:
        Gauge(f"{_PREFIX}_{name}", says, registry=self.registry).set_function(value)


def _recorded(recorder: Recorder, state: Recorded) -> float:
    return recorder.counts[state]
