"""Steps for Prometheus, at an HTTP endpoint of the learner: the newest step's metrics as gauges, totals as counters.

A metric that the newest step does not have is not in the answer at all, so that a graph shows a gap rather than the
value of an older step. The registry is the endpoint's own: nothing is shared with other libraries of the process.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from learner.watching.definitions import DEFINITIONS
from learner.watching.steps import StepSeen

PREFIX = "hindstream_learner_"


def prometheus_name(name: str) -> str:
    """A metric's name in Prometheus: prefix, name, unit; a unit that the name says itself is not said twice."""
    unit = DEFINITIONS[name].unit
    suffix = f"_{unit}" if unit and unit not in name.split("_") else ""
    return f"{PREFIX}{name}{suffix}"


class StepCollector(Collector):
    """What Prometheus is told. Written by one thread and read by the endpoint's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: StepSeen | None = None
        self._versions: dict[tuple[str, str], int] = {}
        self._micro_batches: dict[tuple[str, ...], float] = defaultdict(float)
        self._samples: dict[tuple[str, ...], float] = defaultdict(float)
        self._tokens: dict[tuple[str, ...], float] = defaultdict(float)
        self._seconds: dict[tuple[str, ...], float] = defaultdict(float)

    def add(self, step: StepSeen) -> None:
        """Count a step and make it the newest."""
        key = (step.run, step.policy)
        with self._lock:
            self._newest = step
            if step.version is not None:
                self._versions[key] = step.version
            self._micro_batches[(*key, step.skipped_reason or "trained")] += 1
            self._samples[(*key, "trained")] += step.samples_trained
            for reason, number in step.drops.items():
                self._samples[(*key, reason)] += number
            self._tokens[key] += step.tokens
            self._seconds[key] += step.seconds

    def collect(self) -> Iterator[Metric]:
        """The families of one answer."""
        with self._lock:
            newest = self._newest
            if newest is None:
                return
            labels = ["run", "policy"]
            version = GaugeMetricFamily(f"{PREFIX}version", "Newest weight version.", labels=labels)
            for key, number in self._versions.items():
                version.add_metric(key, number)
            families: list[Metric] = [
                version,
                _counter(
                    "micro_batches", "Consumed micro-batches by outcome.", [*labels, "outcome"], self._micro_batches
                ),
                _counter("samples", "Samples by end: trained, or a drop reason.", [*labels, "end"], self._samples),
                _counter("trained_tokens", "Response tokens trained.", labels, self._tokens),
                _counter("step_seconds", "Wall time of all steps.", labels, self._seconds),
            ]
        yield from families
        for name, value in newest.values().items():
            if name in DEFINITIONS:
                gauge = GaugeMetricFamily(prometheus_name(name), DEFINITIONS[name].help, labels=labels)
                gauge.add_metric((newest.run, newest.policy), value)
                yield gauge


def _counter(name: str, help_: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{PREFIX}{name}", help_, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


class PrometheusEndpoint:
    """GET /metrics on `host`:`port` (0 chooses a free one; `port` then holds it).

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        self._collector = StepCollector()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as err:
            raise OSError(
                f"Prometheus' endpoint on {host}:{port}: {err.strerror or err}; choose another port "
                "(HINDSTREAM_LEARNER__WATCH__PROMETHEUS_PORT)"
            ) from err
        self.port = int(self._server.server_port)

    def observe(self, step: StepSeen) -> None:
        """Make `step` the newest."""
        self._collector.add(step)

    def close(self) -> None:
        """Give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
