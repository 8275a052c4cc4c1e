"""Watching: every name is defined, every exporter says the same, absent stays absent, and no watcher stops training."""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from learner.watching import observers as observers_module
from learner.watching import page
from learner.watching.definitions import DEFINITIONS
from learner.watching.observers import Observers
from learner.watching.prometheus import PREFIX, PrometheusEndpoint, prometheus_name
from learner.watching.steps import StepSeen, line
from learner.watching.tensorboard import TensorBoardFiles
from learner.watching.wandb import WandbRun

STEP = StepSeen(
    run="live",
    policy="policy",
    seq=1,
    version=1,
    skipped_reason=None,
    metrics={"loss": -0.25, "kl_k3": 0.002, "opd_advantage_mean": None, "staleness_mean": 0.0, "reward_mean": 0.5},
    samples_trained=3,
    drops={"stale": 2},
    tokens=120,
    seconds=0.5,
)
SKIPPED = replace(
    STEP, seq=2, version=None, skipped_reason="masked_batch", metrics={"loss": None}, samples_trained=0,
    drops={"masked_batch": 4}, tokens=0, seconds=0.25,
)  # fmt: skip


def test_what_a_step_says_and_what_it_cannot_say() -> None:
    assert STEP.values() == {
        "loss": -0.25, "kl_k3": 0.002, "staleness_mean": 0.0, "reward_mean": 0.5, "seconds": 0.5,
        "samples_trained": 3.0, "samples_dropped": 2.0, "tokens_per_second": 240.0,
    }  # fmt: skip
    assert SKIPPED.values() == {"seconds": 0.25, "samples_trained": 0.0, "samples_dropped": 4.0}
    assert set(STEP.values()) <= DEFINITIONS.keys()


def test_a_step_as_a_line_of_the_log() -> None:
    assert line(STEP) == (
        "micro-batch 1: version 1, 3 trained, 2 dropped (2 stale), 0.5 s, 240 tokens/s, reward +0.50, kl 0.0020, "
        "staleness 0.0"
    )
    assert line(SKIPPED) == "micro-batch 2: no step (masked_batch), 0 trained, 4 dropped (4 masked_batch), 0.2 s"


def test_each_definition_is_one_of_a_kind_and_says_something() -> None:
    assert len({prometheus_name(name) for name in DEFINITIONS}) == len(DEFINITIONS)
    for name, definition in DEFINITIONS.items():
        assert definition.name == name
        assert len(definition.help) > 10
        assert definition.help.endswith(".")
    assert prometheus_name("entropy") == "hindstream_learner_entropy_nats"
    assert prometheus_name("rl_tokens") == "hindstream_learner_rl_tokens"


def scraped(endpoint: PrometheusEndpoint) -> dict[str, dict[tuple[str, ...], float]]:
    """By sample name, then by the values of the labels beside run and policy."""
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert (sample.labels["run"], sample.labels["policy"]) == ("live", "policy")
            rest = tuple(value for label, value in sample.labels.items() if label not in ("run", "policy"))
            found.setdefault(sample.name.removeprefix(PREFIX), {})[rest] = sample.value
    return found


def test_prometheus_shows_the_newest_step_and_counts_all() -> None:
    endpoint = PrometheusEndpoint("127.0.0.1", 0)
    try:
        assert scraped(endpoint) == {}
        endpoint.observe(STEP)
        first = scraped(endpoint)
        assert first["kl_k3_nats"] == {(): 0.002}
        assert first["staleness_mean_versions"] == {(): 0.0}
        assert "opd_advantage_mean" not in first
        endpoint.observe(SKIPPED)
        second = scraped(endpoint)
        assert "kl_k3_nats" not in second  # a gap, not the value of the step before
        assert second["version"] == {(): 1.0}
        assert second["micro_batches_total"] == {("trained",): 1.0, ("masked_batch",): 1.0}
        assert second["samples_total"] == {("trained",): 3.0, ("stale",): 2.0, ("masked_batch",): 4.0}
        assert second["trained_tokens_total"] == {(): 120.0}
        assert second["step_seconds_total"] == {(): 0.75}
        named = {name.removeprefix(PREFIX) for name in re.findall(rf"{PREFIX}\w+", page.FILE.read_text())}
        known = {prometheus_name(name).removeprefix(PREFIX) for name in DEFINITIONS} | second.keys()
        assert named - known - {""} == set()
    finally:
        endpoint.close()


def test_two_endpoints_in_one_process_share_nothing_and_give_their_ports_back() -> None:
    one, other = PrometheusEndpoint("127.0.0.1", 0), PrometheusEndpoint("127.0.0.1", 0)
    one.observe(STEP)
    assert scraped(other) == {}
    port = one.port
    one.close()
    again = PrometheusEndpoint("127.0.0.1", port)
    for each in (again, other):
        each.close()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}.*PROMETHEUS_PORT"):
            PrometheusEndpoint("127.0.0.1", port)


def test_tensorboard_gets_a_curve_a_metric_over_the_micro_batches(tmp_path: Path) -> None:
    for steps in ([STEP, SKIPPED], [replace(STEP, seq=3, metrics={"loss": -0.5})]):  # a restart between
        files = TensorBoardFiles(tmp_path)
        for step in steps:
            files.observe(step)
        files.close()
    seen = EventAccumulator(str(tmp_path / "live"))
    seen.Reload()
    assert [(event.step, event.value) for event in seen.Scalars("loss/loss")] == [(1, -0.25), (3, -0.5)]
    assert [event.step for event in seen.Scalars("step/seconds")] == [1, 2, 3]
    assert "advantage/opd_advantage_mean" not in seen.Tags()["scalars"]


class FakeWandb(ModuleType):
    """What we use of wandb, noting what it is told."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def init(self, **arguments: Any) -> FakeWandb:
        self.inits.append(arguments)
        return self

    def log(self, points: dict[str, float], *, step: int) -> None:
        self.logged.append((step, points))

    def finish(self) -> None:
        self.finished += 1


def test_wandb_is_offline_and_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = WandbRun("talk", tmp_path / "wandb", "offline")
    for step in (STEP, SKIPPED):
        run.observe(step)
    run.close()
    (init,) = fake.inits
    assert (init["project"], init["mode"], init["id"], init["resume"]) == ("talk", "offline", "live", "allow")
    assert [step for step, _ in fake.logged] == [1, 2]
    assert fake.logged[0][1]["kl/kl_k3"] == 0.002
    assert "loss/loss" not in fake.logged[1][1]
    assert fake.finished == 1


def test_wandb_that_is_asked_for_and_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install wandb"):
        WandbRun("talk", tmp_path, "offline")


class Watcher:
    """Notes what it is shown; `fault` is raised on each step."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.seen: list[int] = []
        self.closed = False
        self._fault = fault

    def observe(self, step: StepSeen) -> None:
        self.seen.append(step.seq)
        if self._fault:
            raise self._fault

    def close(self) -> None:
        self.closed = True
        if self._fault:
            raise self._fault


def test_a_watcher_that_fails_is_told_once_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Watcher(OSError("disk full")), Watcher()

    def cannot() -> Watcher:
        raise OSError("port taken")

    watching = Observers([cannot, lambda: bad, lambda: good])
    with caplog.at_level(logging.WARNING):
        for seq in range(1, 4):
            watching.observe(replace(STEP, seq=seq))
        watching.close()
    assert good.seen == bad.seen == [1, 2, 3]
    assert good.closed
    assert sum("port taken" in record.getMessage() for record in caplog.records) == 1
    assert sum("failed on micro-batch 1" in record.getMessage() for record in caplog.records) == 1
    assert not any("failed on micro-batch 2" in record.getMessage() for record in caplog.records)


def test_a_watcher_that_hangs_costs_training_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observers_module, "_HELD", 2)
    monkeypatch.setattr(observers_module, "_LAST_WORDS_S", 0.05)
    inside, free = threading.Event(), threading.Event()

    class Hanging(Watcher):
        def observe(self, step: StepSeen) -> None:
            inside.set()
            free.wait(10)

    watching = Observers([Hanging])
    try:
        watching.observe(STEP)
        assert inside.wait(10)
        for seq in range(2, 8):
            watching.observe(replace(STEP, seq=seq))  # two wait, the others are not shown; none blocks
        watching.close()
        assert sum("steps behind" in record.getMessage() for record in caplog.records) == 1
    finally:
        free.set()


def test_nobody_watching_needs_no_thread() -> None:
    before = threading.active_count()
    watching = Observers([])
    watching.observe(STEP)
    assert threading.active_count() == before
    watching.close()


def test_the_page_of_metrics_is_current() -> None:
    assert page.FILE.read_text() == page.render(page.FILE.read_text()), "run: python -m learner.watching.page"
    with pytest.raises(ValueError, match="needs the lines"):
        page.render("# A page without marks")
