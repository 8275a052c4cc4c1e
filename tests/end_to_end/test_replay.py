"""`hindstream replay` on the real log, down to weights: killed in the middle and resumed, it makes the same ones."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, create_engine, text

from hindstream.cli.topics import ensure_topics
from hindstream.settings import child_environment
from learner.manifest import weights_digest
from schemas.envelope import encode, new_event
from schemas.events import (
    EventData,
    NextStateObserved,
    PolicyRef,
    Response,
    SessionClosed,
    Tokens,
    TurnRecorded,
    VersionSpan,
)
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS
from tests.learner.learning import VOCABULARY, tiny_model

pytestmark = pytest.mark.stack

TURNS = 24
BATCH = 4
RULES = '[{"pattern": "thanks", "score": 1}, {"pattern": "wrong", "score": -1}]'
RECIPE = ("--recipe", "binary-rl", "--set", "judge.votes=0", "--set", f"judge.rules={RULES}")
LEARNING = ("--set", f"batch.size={BATCH}", "--set", "optimizer.lr=0.001")


class Replays:
    """The command line, on a log of `TURNS` sessions of one turn each."""

    def __init__(self, bootstrap: str, url: str, directory: Path) -> None:
        self.engine: Engine = create_engine(url)
        self._environment = child_environment(
            HINDSTREAM_HOME=str(directory / "home"),
            HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS=bootstrap,
            HINDSTREAM_DATABASE__URL=url,
            HINDSTREAM_MODEL=str(tiny_model(directory / "base")),
            HINDSTREAM_LEARNER__THREADS="1",
            OMP_WAIT_POLICY="PASSIVE",
        )
        self.sessions = [f"{secrets.token_hex(4)}-{number}" for number in range(TURNS)]
        ensure_topics(bootstrap, 8)
        self._publish(bootstrap)

    def start(self, name: str, *more: str) -> subprocess.Popen[str]:
        arguments = ["replay", "--name", name, *RECIPE, *LEARNING, "--sessions", ",".join(self.sessions), *more]
        return subprocess.Popen(
            [sys.executable, "-m", "hindstream", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def command(self, *arguments: str) -> str:
        """Another command of `hindstream`; returns what it printed on its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "hindstream", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, name: str, *more: str) -> str:
        """To its end; returns what it printed."""
        process = self.start(name, *more)
        output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output
        return output

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    def digests(self, run: str) -> list[str]:
        return [row[0] for row in self.rows("SELECT digest FROM micro_batches WHERE run = :r ORDER BY seq", r=run)]

    def weights(self, policy: str) -> list[str]:
        found = self.rows("SELECT manifest FROM weight_versions WHERE policy = :p ORDER BY version", p=policy)
        return [weights_digest(row[0]) for row in found]

    def _publish(self, bootstrap: str) -> None:
        random = np.random.default_rng(0)
        events: list[EventData] = []
        for number, session in enumerate(self.sessions):
            ids = random.integers(1, VOCABULARY, 9).tolist()
            turn = TurnRecorded(
                session_id=session,
                turn_id=f"turn-{session}",
                ordinal=0,
                messages=[{"role": "user", "content": "?"}],
                response=Response(content="!"),
                finish_reason="stop",
                # Half of them by a server that did not say which version it was: a replay needs no version.
                policy=PolicyRef(name="another", spans=[VersionSpan(version=number % 2 or None, start=0, end=5)]),
                tokens=Tokens(
                    source="engine",
                    prompt_ids=ids[:4],
                    response_ids=ids[4:],
                    response_logprobs=[-5.0, -5.5, -5, -6, -5],
                ),
            )
            reply = "wrong" if number % 3 == 0 else "thanks"
            state = NextStateObserved(
                next_state_id=f"next-{session}",
                session_id=session,
                turn_id=turn.turn_id,
                kind="user_reply",
                content=reply,
            )
            events += [turn, state, SessionClosed(session_id=session, reason="done")]
        records = [
            encode(new_event(data, id=f"{type(data).__name__}-{data.session_id}", source="test")) for data in events
        ]
        with AckedPublisher(bootstrap, client_id="test") as publisher:
            publisher.publish(AGENT_EVENTS, records)


@pytest.fixture
def replays(broker: str, migrated_database_url: str, tmp_path: Path) -> Replays:
    return Replays(broker, migrated_database_url, tmp_path)


def until(done: Callable[[], bool], seconds: float, words: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, words
        time.sleep(0.05)


def test_a_replay_that_was_killed_makes_the_same_weights_as_one_that_was_not(replays: Replays) -> None:
    said = replays.run("whole")
    assert f"{TURNS} turns taken" in said
    killed = replays.start("killed")
    consumed = "SELECT count(*) FROM training_steps WHERE run = 'killed'"
    until(lambda: replays.rows(consumed) != [(0,)], 300, "nothing was trained")
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert "goes on" in replays.run("killed")
    assert replays.digests("killed") == replays.digests("whole")
    assert len(replays.digests("whole")) == TURNS // BATCH
    assert replays.weights("killed") == replays.weights("whole")
    assert len(set(replays.weights("whole"))) == 1 + TURNS // BATCH
    for run in ("whole", "killed"):
        assert replays.rows("SELECT turns_seen, trained, balance FROM ledger WHERE run = :r", r=run) == [
            (TURNS, TURNS, 0)
        ]
    ratios = replays.rows("SELECT metrics ->> 'ratio_p50' FROM training_steps WHERE run = 'whole'")
    assert all(ratio is not None for (ratio,) in ratios)


def test_runs_are_compared_on_what_they_did_not_train_and_weighed_by_their_weights(replays: Replays) -> None:
    """One run trains 16 turns of 24 at a high rate, the other nothing; the rest shows what the learning did."""
    replays.run("part", "--set", "batch.size=16", "--set", "optimizer.lr=0.01")
    replays.run("none", "--set", "batch.size=100")
    found = json.loads(replays.command("compare", "part", "none", "--held-out", "50", "--json"))
    held = found["held_out"]
    assert held["liked"] + held["disliked"] == TURNS - 16
    assert held["gains"]["none"] is None
    assert held["gains"]["part"]["version"] == 1
    assert held["gains"]["part"]["liked"] != 0
    assert found["rewards"]["kappa"] == 1.0
    told = json.loads(replays.command("estimate", "1", "--run", "part", "--least", "1", "--json"))
    recorded, per_decision, sequence = told["estimates"]
    assert recorded["value"] == pytest.approx((16 - 8) / TURNS)
    assert recorded["effective"] == TURNS
    for one in (per_decision, sequence):
        assert -1 <= one["low"] <= one["value"] <= one["high"] <= 1
        assert one["effective"] < TURNS
    refused = json.loads(replays.command("estimate", "1", "--run", "part", "--least", "24", "--json"))
    assert [one["value"] is None for one in refused["estimates"]] == [False, True, True]


def test_a_replay_of_a_part_of_the_log_stops_where_it_is_told(replays: Replays) -> None:
    asked = replays.start("part", "--sample", "0.5", "--seed", "3", "--stop-after", "rewards")
    output, _ = asked.communicate(timeout=60)
    assert asked.returncode == 0, output
    ((turns, micro_batches),) = replays.rows(
        "SELECT turns_seen, (SELECT count(*) FROM micro_batches WHERE run = 'part') FROM ledger WHERE run = 'part'"
    )
    assert 0 < turns < TURNS
    assert micro_batches == 0
    assert replays.rows("SELECT count(*) FROM rewards WHERE run = 'part'") == [(turns,)]
    refused = replays.start("part", "--sample", "0.4", "--seed", "3", "--stop-after", "rewards")
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert "choose another name" in output
