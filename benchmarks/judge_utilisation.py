"""How much of a slow judge's own throughput an evaluator process keeps it busy with.

The judge takes `judge_delay_s` for every answer and never more than `concurrency` at once, so its own throughput is
`concurrency / judge_delay_s` answers a second. One worker process claims the work, as anybody starts it.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from aiohttp import web
from sqlalchemy import Engine, create_engine, text

from benchmarks.synthetic import dialogues
from hindstream.services import Service, Services
from processors.dead_letters import Delivery
from processors.recording import record
from processors.runs import ensure_run
from schemas.envelope import WireRecord
from schemas.recipes import recipe_named

_RUN = "slow-judge"
_EVENTS_A_BATCH = 192
_LIMIT_S = 600.0


@dataclass
class SlowJudge:
    """What the judge saw. `busy_s`: the time that its slots were taken, added up."""

    delay_s: float
    url: str = ""
    in_flight: int = 0
    most: int = 0
    arrived: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    async def answer(self, _: web.Request) -> web.Response:
        """ "good", after the delay."""
        self.arrived.append(time.monotonic())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.in_flight -= 1
            self.ended.append(time.monotonic())
        return web.json_response({"choices": [{"message": {"content": "good"}, "finish_reason": "stop"}]})

    def share(self, concurrency: int) -> float:
        """Share of the slots' time that was taken, from the first request's arrival to the last one's: until then there
        was always work, so whatever is missing is the evaluator's, its start included."""
        begin, end = self.arrived[0], self.arrived[-1]
        # A slot is taken from each arrival on, and free again from each end on, as far as both lie before `end`.
        taken = sum(end - moment for moment in self.arrived) - sum(
            end - moment for moment in self.ended if moment < end
        )
        return taken / (concurrency * (end - begin))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve in a thread of its own."""
        loop, ready = asyncio.new_event_loop(), threading.Event()
        stop = asyncio.Event()

        async def serve() -> None:
            app = web.Application(client_max_size=1 << 24)
            app.router.add_post("/v1/chat/completions", self.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await stop.wait()
            await runner.cleanup()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="slow judge", daemon=True)
        thread.start()
        if not ready.wait(_LIMIT_S):
            raise RuntimeError("the judge did not start")
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


def measure(
    broker: str, database_url: str, judge_delay_s: float = 2.0, concurrency: int = 64, turns: int = 1280
) -> float:
    """Share of the judge's own throughput that a worker keeps, at most 1.

    Args:
        broker: host:port; the worker's settings want one, though it sends nothing there.
        database_url: of a migrated database, in SQLAlchemy's form; a run named "slow-judge" is made in it.
        judge_delay_s: how long the judge takes for an answer.
        concurrency: answers that it gives at once.
        turns: to be judged, one answer each. The more, the less the start counts.

    Raises:
        UserError: the worker ended.
        RuntimeError: not every turn was judged in time, or the judge was asked more than `concurrency` at once.
    """
    recipe = recipe_named("binary-rl", {"judge": {"code": False, "votes": 1, "quorum": 1}})
    engine = create_engine(database_url)
    judge = SlowJudge(judge_delay_s)
    try:
        with engine.begin() as connection:
            ensure_run(connection, run=_RUN, kind="live", policy="policy", recipe=recipe)
        records = list(dialogues(turns, turns=1))  # each asks something else, or the cache would answer
        for first in range(0, len(records), _EVENTS_A_BATCH):
            with engine.begin() as connection:
                record(connection, _deliveries(records[first : first + _EVENTS_A_BATCH], first))
        with tempfile.TemporaryDirectory(prefix="hindstream-judge-") as directory, judge.running():
            home = Path(directory)
            (home / "recipe.json").write_bytes(msgspec.json.encode(msgspec.to_builtins(recipe)))
            services = Services(
                home / "logs",
                {
                    "HINDSTREAM_HOME": str(home / "home"),
                    "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": broker,
                    "HINDSTREAM_DATABASE__URL": database_url.replace("+psycopg", ""),
                    "HINDSTREAM_RUN__NAME": _RUN,
                    "HINDSTREAM_RUN__RECIPE": str(home / "recipe.json"),
                    "HINDSTREAM_WORKER__CONCURRENCY": str(concurrency),
                    **{
                        f"HINDSTREAM_{role}__{name}": value
                        for role in ("JUDGE", "TEACHER", "POLICY")
                        for name, value in (("URL", judge.url), ("CONCURRENCY", str(concurrency)))
                    },
                },
            )
            try:
                services.start(Service(name="worker", arguments=("worker", "run", "--roles", "evaluators")))
                _wait(engine, turns, services)
            finally:
                services.stop()
    finally:
        engine.dispose()
    if judge.most > concurrency:
        raise RuntimeError(f"the judge was asked {judge.most} questions at once, and may be asked {concurrency}")
    return judge.share(concurrency)


def _deliveries(records: Sequence[WireRecord], first: int) -> list[Delivery]:
    return [
        Delivery("agent-events", 0, first + place, wire.key, wire.headers, wire.value)
        for place, wire in enumerate(records)
    ]


def _wait(engine: Engine, turns: int, services: Services) -> None:
    deadline = time.monotonic() + _LIMIT_S
    query = text("SELECT count(*) FROM rewards WHERE run = :run")
    while True:
        with engine.connect() as connection:
            if connection.execute(query, {"run": _RUN}).scalar_one() >= turns:
                return
        services.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"not every turn was judged after {_LIMIT_S:.0f} s")
        time.sleep(0.5)
