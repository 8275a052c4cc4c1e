"""A replay: the same log makes the same micro-batches, whatever is stopped, and live runs are not touched."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text

from processors.batcher import next_micro_batch
from processors.dead_letters import Delivery
from processors.evaluators.config import EvaluatorsConfig
from processors.replay.progress import Counts, Offsets, ReplayMismatch
from processors.replay.selection import Selection
from processors.replay.service import Outcome, ReplayConfig, open_replay, run_replay
from processors.runs import RunMismatch
from schemas.envelope import decode
from schemas.events import SessionClosed
from schemas.recipes import Recipe, recipe_named
from schemas.topics import AGENT_EVENTS
from tests.processors.conversations import Recording, deliver, next_state, turn
from tests.processors.evaluating import FakeServer, evaluators

TURNS = 40


def recipe(**overrides: Any) -> Recipe:
    """Rules judge: thanks is +1, "wrong" is -1."""
    rules = [{"pattern": "thanks", "score": 1}, {"pattern": "wrong", "score": -1}]
    return recipe_named("binary-rl", {"judge": {"votes": 0, "rules": rules}, "batch": {"size": 4}, **overrides})


def conversations(turns: int = TURNS, sessions: int = 5) -> list[Delivery]:
    """Sessions whose turns stand interleaved on the log: every third is wrong, every seventh has no opinion."""
    events: list[Any] = []
    for number in range(turns):
        session, place = f"s{number % sessions}", number // sessions
        parent = f"{session}-{place - 1}" if place else None
        carried = [f"n-{parent}"] if parent else []
        words = "hm" if number % 7 == 0 else "wrong" if number % 3 == 0 else "thanks"
        events.append(turn(f"{session}-{place}", session, parent, ordinal=place, next_state_ids=carried))
        events.append(next_state(f"n-{session}-{place}", f"{session}-{place}", session, content=words))
    events += [SessionClosed(session_id=f"s{number}", reason="done") for number in range(sessions)]
    return deliver(*events)


@dataclass
class ListLog:
    """Deliveries in memory as a log. `stop_at`: the reading process dies before this record."""

    deliveries: list[Delivery]
    name: str = AGENT_EVENTS
    stop_at: int | None = None
    read_offsets: list[int] = field(default_factory=list)

    def bounds(self, selection: Selection) -> tuple[Offsets, Offsets]:
        return {0: 0}, {0: len(self.deliveries)}

    def read(
        self, starts: Mapping[int, int], ends: Mapping[int, int], stop: threading.Event
    ) -> Iterator[tuple[Delivery, float]]:
        for one in self.deliveries[starts[0] : ends[0]]:
            if self.stop_at is not None and one.offset >= self.stop_at:
                stop.wait()
                return
            self.read_offsets.append(one.offset)
            yield one, float(one.offset)


def config(recording: Recording, run: str, recipe_: Recipe, **more: Any) -> ReplayConfig:
    fields: dict[str, Any] = {
        "policy": run,
        "selection": Selection(),
        "stop_after": "samples",
        "evaluators": alone(run),
        "relay": None,
        "batch": 7,
    }
    url = recording.engine.url.render_as_string(hide_password=False)
    return ReplayConfig(run=run, recipe=recipe_, database_url=url, **{**fields, **more})


def alone(run: str, **more: Any) -> EvaluatorsConfig:
    """Evaluators that work for this run only; without `judge` nobody can be asked."""
    return evaluators(runs=(run,), **more)


async def replay(config: ReplayConfig, log: ListLog, seconds: float = 60) -> Outcome:
    open_replay(config, log)
    return await asyncio.wait_for(run_replay(config, log, asyncio.Event()), seconds)


async def die(config: ReplayConfig, log: ListLog) -> None:
    """Stop in the middle, as soon as something was read."""
    open_replay(config, log)
    stop = asyncio.Event()
    outcome = await asyncio.wait_for(
        run_replay(config, log, stop, lambda counts: stop.set() if counts.records else None), 60
    )
    assert not outcome.finished


def batches(recording: Recording, run: str) -> list[tuple[Any, ...]]:
    """Digest of each micro-batch and the turns in it, in order."""
    return recording.rows(
        "SELECT b.seq, b.digest, array_agg(s.turn_id ORDER BY s.position) FROM micro_batches b "
        "JOIN samples s USING (micro_batch_id) WHERE b.run = :run GROUP BY b.seq, b.digest ORDER BY b.seq",
        run=run,
    )


def ledger(recording: Recording, run: str) -> dict[str, int]:
    with recording.engine.connect() as connection:
        row = connection.execute(text("SELECT * FROM ledger WHERE run = :run"), {"run": run}).mappings().one()
    return dict(row)


@pytest.mark.stack
async def test_two_replays_make_the_same_micro_batches_and_a_stopped_one_goes_on(recording: Recording) -> None:
    log = conversations()
    recording.record(*(one.data for one in events_of(log)))
    first = await replay(config(recording, "first", recipe()), ListLog(log))
    assert first.finished
    stopped = ListLog(log, stop_at=31)
    await die(config(recording, "second", recipe()), stopped)
    again = ListLog(log)
    second = await replay(config(recording, "second", recipe()), again)
    assert second.finished
    assert again.read_offsets[0] in (7, 14, 21, 28), "it goes on after the last batch that was committed"
    made = batches(recording, "first")
    assert len(made) == len([n for n in range(TURNS) if n % 7]) // 4
    assert batches(recording, "second") == made
    in_order = [turn_id for _, _, turns in made for turn_id in turns]
    assert in_order == [f"s{n % 5}-{n // 5}" for n in range(TURNS) if n % 7][: len(in_order)]
    for run in ("first", "second"):
        assert ledger(recording, run)["turns_seen"] == TURNS
        assert ledger(recording, run)["balance"] == 0
        assert ledger(recording, run)["dropped"] == len([n for n in range(TURNS) if n % 7 == 0])


@pytest.mark.stack
async def test_the_order_of_the_log_decides_and_not_who_answers_first(recording: Recording) -> None:
    """The first turn of the log is decided last: nothing behind it is batched before it."""
    log = conversations(turns=12, sessions=3)
    recording.record(*(one.data for one in events_of(log)))
    setup = config(recording, "r", recipe(), stop_after="rewards", evaluators=None)
    open_replay(setup, ListLog(log))
    await asyncio.wait_for(_until_read(setup, ListLog(log)), 30)
    with recording.engine.begin() as connection:
        order = list(
            connection.execute(text("SELECT turn_id FROM samples WHERE run = 'r' ORDER BY replay_order")).scalars()
        )
        connection.execute(
            text(
                "UPDATE samples SET state = 'ready', ready_at = now(), content_digest = turn_id "
                "WHERE run = 'r' AND turn_id <> :t"
            ),
            {"t": order[0]},
        )
        assert next_micro_batch(connection, "r", max_in_flight=9) is None
        connection.execute(
            text("UPDATE samples SET state = 'dropped', drop_reason = 'no_signal' WHERE run = 'r' AND turn_id = :t"),
            {"t": order[0]},
        )
        assert next_micro_batch(connection, "r", max_in_flight=9) is not None
    assert batches(recording, "r")[0][2] == order[1:5]


@pytest.mark.stack
async def test_live_rows_stay_as_they_are(recording: Recording) -> None:
    """Also where the log holds turns that the live worker has not read yet: they are recorded as it would."""
    log = conversations()
    recording.record(*(one.data for one in events_of(log[:50])))
    before = recording.rows("SELECT sample_id, state, linked FROM samples WHERE run = 'live' ORDER BY 1")
    open_before = recording.rows("SELECT turn_id, signal, state FROM evaluations WHERE run = 'live' ORDER BY 1, 2")
    await replay(config(recording, "r", recipe()), ListLog(log))
    after = recording.rows("SELECT sample_id, state, linked FROM samples WHERE run = 'live' ORDER BY 1")
    assert {row[0] for row in before} < {row[0] for row in after}
    assert len(after) == TURNS
    open_after = recording.rows("SELECT turn_id, signal, state FROM evaluations WHERE run = 'live' ORDER BY 1, 2")
    assert {row[2] for row in open_after} == {"open", "waiting"}
    assert set(open_before) <= set(open_after)
    assert ledger(recording, "live")["balance"] == 0
    assert ledger(recording, "r")["balance"] == 0


@pytest.mark.stack
async def test_what_comes_from_files_is_no_live_run_s(recording: Recording) -> None:
    log = ListLog(conversations(), name="file:abc")
    outcome = await replay(config(recording, "r", recipe()), log)
    assert outcome.finished
    assert recording.rows("SELECT count(*) FROM samples WHERE run = 'live'") == [(0,)]
    assert recording.rows("SELECT DISTINCT log FROM turns") == [("file:abc",)]
    assert ledger(recording, "live")["turns_seen"] == 0
    assert ledger(recording, "r")["turns_seen"] == TURNS


@pytest.mark.stack
async def test_only_new_votes_are_asked_and_a_new_loss_asks_nothing(recording: Recording) -> None:
    """Three votes a turn are recorded under version 3 of the judge; five cost two more, another loss none."""
    log = conversations(turns=6, sessions=2)
    recording.record(*(one.data for one in events_of(log)))
    asks = {"judge": {"votes": 3, "quorum": 2, "rules": []}}
    fake = FakeServer(lambda _: "good", version="3")
    async with fake.running():
        judged = alone("three", judge=fake.url)
        await replay(config(recording, "three", recipe(**asks), evaluators=judged), ListLog(log))
        assert len(fake.requests) == 6 * 3
        fake.version = "9"
        five = {"judge": {"votes": 5, "quorum": 2, "rules": []}}
        await replay(config(recording, "five", recipe(**five), evaluators=alone("five", judge=fake.url)), ListLog(log))
        assert len(fake.requests) == 6 * 5
        loss = {**five, "loss": {"clip_high": 0.5}, "optimizer": {"lr": 1e-4}}
        await replay(config(recording, "loss", recipe(**loss), evaluators=alone("loss", judge=fake.url)), ListLog(log))
        assert len(fake.requests) == 6 * 5
    assert recording.rows("SELECT run, count(*) FROM votes GROUP BY run ORDER BY run") == [
        ("five", 30),
        ("loss", 30),
        ("three", 18),
    ]
    assert [row[1:] for row in batches(recording, "five")] == [row[1:] for row in batches(recording, "loss")]


@pytest.mark.stack
async def test_a_share_of_the_sessions_is_the_same_share_every_time(recording: Recording) -> None:
    log = conversations(turns=200, sessions=100)
    recording.record(*(one.data for one in events_of(log)))
    for run, sample in (("small", 0.2), ("again", 0.2), ("larger", 0.5)):
        await replay(config(recording, run, recipe(), selection=Selection(sample=sample, seed=7)), ListLog(log))
    taken = {
        run: set(recording.rows("SELECT DISTINCT session_id FROM samples WHERE run = :run", run=run))
        for run in ("small", "again", "larger")
    }
    assert taken["small"] == taken["again"] < taken["larger"]
    assert 10 <= len(taken["small"]) <= 30
    assert 35 <= len(taken["larger"]) <= 65
    assert all(ledger(recording, run)["balance"] == 0 for run in taken)


@pytest.mark.stack
async def test_a_range_that_ends_inside_a_session_ends_it(recording: Recording) -> None:
    """The last turn of each session has a next state and no following turn: it is judged; one without is dropped."""
    log = conversations(turns=10, sessions=2)[:-3]
    recording.record(*(one.data for one in events_of(log)))
    outcome = await replay(config(recording, "r", recipe()), ListLog(log))
    assert outcome.finished
    reasons = dict(recording.rows("SELECT turn_id, drop_reason FROM samples WHERE run = 'r'"))
    assert reasons["s1-4"] == "no_next_state"
    assert reasons["s0-4"] is None
    assert ledger(recording, "r")["pending"] == 0


@pytest.mark.stack
async def test_a_name_stands_for_one_replay(recording: Recording) -> None:
    log = ListLog(conversations(turns=4, sessions=1))
    open_replay(config(recording, "r", recipe()), log)
    with pytest.raises(
        ReplayMismatch, match=r"replay 'r' exists and it was asked for .*sample 1\.0.*not .*sample 0\.5"
    ):
        open_replay(config(recording, "r", recipe(), selection=Selection(sample=0.5)), log)
    with pytest.raises(ReplayMismatch, match="it reads agent-events, not file:x"):
        open_replay(config(recording, "r", recipe()), ListLog([], name="file:x"))
    with pytest.raises(RunMismatch, match="its recipe is"):
        open_replay(config(recording, "r", recipe(batch={"size": 5})), log)
    with pytest.raises(RunMismatch, match="it is a live run, not a replay one"):
        open_replay(config(recording, "live", recipe_named("combine"), policy="policy"), log)
    with pytest.raises(ValueError, match="share of the sessions"):
        open_replay(config(recording, "s", recipe(), selection=Selection(sample=0)), log)


async def _until_read(setup: ReplayConfig, log: ListLog) -> None:
    """Read the whole log; nobody evaluates."""
    stop = asyncio.Event()
    await run_replay(setup, log, stop, lambda counts: stop.set() if counts.records == counts.records_total else None)


def events_of(log: list[Delivery]) -> list[Any]:
    return [decode(one.value, one.headers) for one in log]


@pytest.mark.stack
async def test_groups_wait_until_every_candidate_is_read(recording: Recording) -> None:
    """Six prompts of three candidates, spread over the log: no group is taken while one of its may be unread."""
    events: list[Any] = []
    for candidate in range(3):
        for group in range(6):
            name = f"g{group}-{candidate}"
            words = "thanks" if (group + candidate) % 2 else "wrong"
            events += [
                turn(name, name, group_id=f"g{group}"),
                next_state(f"n-{name}", name, name, content=words),
                SessionClosed(session_id=name, reason="done"),
            ]
    log = deliver(*events)
    grouped = recipe_named(
        "grpo",
        {
            "judge": {
                "votes": 0,
                "rules": [{"pattern": "thanks", "score": 1}, {"pattern": "wrong", "score": -1}],
            },
            "batch": {"size": 6},
        },
    )
    stopped = ListLog(log, stop_at=40)
    setup = config(recording, "second", grouped)
    open_replay(setup, stopped)
    stop = asyncio.Event()

    def enough(counts: Counts) -> None:
        if counts.turns >= 10 and counts.answered == counts.asked:
            stop.set()

    await asyncio.wait_for(run_replay(setup, stopped, stop, enough), 60)
    assert batches(recording, "second") == []
    await replay(setup, ListLog(log))
    await replay(config(recording, "first", grouped), ListLog(log))
    made = batches(recording, "first")
    assert [row[1:] for row in batches(recording, "second")] == [row[1:] for row in made]
    assert len(made) == 3
    for _, _, turns in made:
        assert len({name[:2] for name in turns}) == 2
        assert len(turns) == 6
