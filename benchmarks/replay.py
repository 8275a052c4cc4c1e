"""Replaying: turns a second where every answer is recorded, beside a bare consumer of the same topic; and importing.

A live run has recorded the log, and every vote that the recipe asks for is kept in `model_answers`, so the replay asks
nobody: its judge's address leads nowhere, and a question without an answer would fail its turn. Measured is what
`hindstream replay --stop-after samples` does, but for starting Python: from the first look at the topic to the last
micro-batch, by the wall clock. Broker and Postgres share the machine's cores with it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TypeVar

from kafka import KafkaConsumer, TopicPartition
from rich.console import Console
from sqlalchemy import Connection, Engine

from benchmarks import importing
from benchmarks.chunks import chunks
from benchmarks.results import Result
from benchmarks.stacks import bench_stack
from benchmarks.synthetic import dialogues
from hindstream.cli.topics import ensure_topics
from processors.evaluators.answers import question_digests
from processors.evaluators.config import EvaluatorsConfig, ServerConfig
from processors.evaluators.inputs import load_answered, load_turns
from processors.evaluators.llm_judge import constraint_of, samplings
from processors.evaluators.prompts import LABELS, prompt_for
from processors.inserting import insert_new
from processors.recording import record
from processors.replay.log import LogRange
from processors.replay.selection import Selection
from processors.replay.service import ReplayConfig, open_replay, run_replay
from processors.replay.sources import TopicLog
from processors.runs import ensure_run
from schemas import tables
from schemas.database import make_engine
from schemas.publish import AckedPublisher
from schemas.recipes import Recipe, recipe_named
from schemas.topics import AGENT_EVENTS

T = TypeVar("T")

_SESSIONS = {None: 10_000, "small": 500, "long": 25_000}
_TURNS = 4
"""Of a session. With their replies and the session's end they are nine records."""
_PARTITIONS = 2
_JUDGE = ServerConfig(url="http://127.0.0.1:9", model="judge", timeout_s=1.0, concurrency=8)
"""Port 9, where nobody listens."""
_CHARACTERS = 4800
_LABELS = tuple(LABELS)
_ROUNDS = 3
"""The best of so many replays, under as many names, and of as many readings: on a machine with other work the mean
measures that work."""
_POLL_MS = 500


def run(console: Console, size: str | None) -> list[Result]:
    """Both parts: a replay on a stack of its own that is gone afterwards, and the import of files."""
    with bench_stack(console, "broker", "postgres") as stack:
        results = _replaying(console, stack.bootstrap, stack.url, _SESSIONS.get(size, _SESSIONS[None]))
    return [*results, *importing.run(console)]


def _replaying(console: Console, bootstrap: str, url: str, sessions: int) -> list[Result]:
    recipe = recipe_named("binary-rl", {"judge": {"votes": 1, "quorum": 1}})
    preset = recipe_named("binary-rl")
    engine = make_engine(url, pool_size=2, application_name="benchmark")
    try:
        _prepare(console, bootstrap, engine, sessions, preset)
    finally:
        engine.dispose()
    turns = sessions * _TURNS
    consumed = min(_consume(bootstrap) for _ in range(_ROUNDS))
    one, three = (
        min(_replay(bootstrap, url, f"{name}-{number}", asked, turns) for number in range(_ROUNDS))
        for name, asked in (("one", recipe), ("three", preset))
    )
    name = "bare kafka-python consumer"
    return [
        Result(name="turns_per_s", value=turns / one, unit="turns/s", baseline=turns / consumed, baseline_name=name),
        Result(name="ratio_consumer", value=consumed / one, unit="of its rate"),
        Result(
            name="turns_of_three_votes_per_s",
            value=turns / three,
            unit="turns/s",
            baseline=turns / consumed,
            baseline_name=name,
        ),
    ]


def _prepare(console: Console, bootstrap: str, engine: Engine, sessions: int, recipe: Recipe) -> None:
    """The log, its facts and the samples of a live run, and an answer to each vote of `recipe`."""
    ensure_topics(bootstrap, _PARTITIONS)
    console.print(f"publishing {sessions} sessions of {_TURNS} turns …")
    with AckedPublisher(bootstrap, client_id="benchmark") as publisher:
        for records in chunks(dialogues(sessions, _TURNS)):
            publisher.publish(AGENT_EVENTS, records)
    console.print("recording them …")
    with engine.begin() as connection:
        ensure_run(connection, run="live", kind="live", policy="policy", recipe=recipe)
    with LogRange(bootstrap, AGENT_EVENTS) as log:
        deliveries = (delivery for delivery, _ in log.read(*log.bounds(None, None), threading.Event()))
        for batch in chunks(deliveries):
            with engine.begin() as connection:
                record(connection, batch)
    with engine.begin() as connection:
        turn_ids = connection.exec_driver_sql("SELECT turn_id FROM turns ORDER BY turn_id").scalars().all()
        for chunk in chunks(turn_ids):
            _answer(connection, chunk, recipe)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")


def _answer(connection: Connection, turn_ids: list[str], recipe: Recipe) -> None:
    assert recipe.judge is not None
    answered, turns, rows = load_answered(connection, turn_ids), load_turns(connection, turn_ids), []
    for number, turn_id in enumerate(turn_ids):
        prompt = prompt_for("reward", turns[turn_id], answered[turn_id].next_states, characters=_CHARACTERS)
        questions = question_digests(
            purpose="reward",
            model=_JUDGE.model,
            prompt_digest=prompt.digest,
            rendered=[prompt.constrained, constraint_of("reward")],
            samplings=samplings(recipe.judge),
        )
        rows += [
            {
                "answer_digest": f"answer to {question}",
                "question_digest": question,
                "purpose": "reward",
                "model": _JUDGE.model,
                "answer": {"content": _LABELS[number % len(_LABELS)], "finish_reason": "stop"},
            }
            for question in questions
        ]
    insert_new(connection, tables.model_answers, rows)


def _consume(bootstrap: str) -> float:
    """Seconds in which a consumer reads every record and does nothing with it."""
    began = time.perf_counter()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    parts = [TopicPartition(AGENT_EVENTS, number) for number in consumer.partitions_for_topic(AGENT_EVENTS)]
    consumer.assign(parts)
    left = sum(consumer.end_offsets(parts).values())
    while left > 0:
        left -= sum(len(records) for records in consumer.poll(timeout_ms=_POLL_MS).values())
    consumer.close()
    return time.perf_counter() - began


def _replay(bootstrap: str, url: str, name: str, recipe: Recipe, turns: int) -> float:
    config = ReplayConfig(
        run=name,
        policy=name,
        recipe=recipe,
        selection=Selection(),
        stop_after="samples",
        database_url=url,
        evaluators=EvaluatorsConfig(
            worker="benchmark",
            judge=_JUDGE,
            teacher=None,
            policy=None,
            runs=(name,),
            concurrency=8,
            lease_s=30.0,
            judge_characters=_CHARACTERS,
        ),
        relay=None,
    )
    source = TopicLog(bootstrap)
    began = time.perf_counter()
    open_replay(config, source)
    outcome = asyncio.run(run_replay(config, source, asyncio.Event()))
    seconds = time.perf_counter() - began
    if not outcome.finished or outcome.counts.turns != turns or outcome.counts.answered != turns:
        raise RuntimeError(f"the replay did not do what it should: {outcome}")
    engine = make_engine(url, pool_size=1, application_name="benchmark")
    with engine.connect() as connection:
        scored = connection.exec_driver_sql(
            "SELECT count(*) FROM rewards WHERE run = %(run)s AND status = 'scored'", {"run": name}
        ).scalar_one()
    engine.dispose()
    if scored != turns:
        raise RuntimeError(f"{turns - scored} of {turns} turns lacked a recorded answer")
    return seconds
