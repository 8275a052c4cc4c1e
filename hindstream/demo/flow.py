"""The demo from nothing to a new weight version: start, ask, learn while talking, ask again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.live import Live
from sqlalchemy import Engine, create_engine, select, text

from hindstream.dashboard.figures import Figures, read_figures, read_rewards_by_version, read_steps
from hindstream.dashboard.screen import figures_table
from hindstream.demo.recipe import demo_recipe
from hindstream.demo.report import Outcome
from hindstream.errors import UserError
from hindstream.services import Services, pipeline_services
from hindstream.stack.ports import choose
from learner.drift import Drift, measure_drift
from producers.simulated_user.questions import HELD_OUT_QUESTIONS
from producers.simulated_user.talk import Answered, UserConfig, survey, talk
from schemas.arrays import unpack_ids
from schemas.tables import turns, weight_versions

_REFRESH_S = 1.0
"""The table is a few queries: once a second costs under 1 % of a core."""
_START_S = 120.0
"""Importing torch and Faust on two busy cores has taken 20 s; beyond this a process is stuck."""
_SETTLE_S = 60.0
"""The last version must be saved, announced, loaded and checked: seen to take 5 s."""
_AHEAD = 1.25
"""Micro-batches of questions that may be open before the user waits for the learner. Above 1, so that the next one
fills while this one is trained; little above, since answers of weights long gone teach less: with 2 (mean staleness
1.5) the policy fell into nonsense that this keeps it from."""
_DRIFT_ANSWERS = 24
"""Sampled answers that the KL is estimated on: about 500 tokens."""


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """What to do: `updates` micro-batches of `batch_size` turns; the survey asks each held-out question
    `rounds` times at temperature 0.7."""

    run: str
    seed: int
    updates: int
    batch_size: int
    lr: float
    rounds: int
    concurrency: int
    time_limit_s: float


@dataclass(frozen=True, kw_only=True)
class DemoStack:
    """Where the stack is; `environment` holds the settings that every process of the pipeline gets."""

    database_url: str
    environment: dict[str, str]
    work_dir: Path


def run_demo(plan: DemoPlan, stack: DemoStack, console: Console) -> Outcome:
    """Run the demo against a stack that is up.

    Raises:
        UserError: a process of the pipeline ended, or the time limit passed before the last update.
    """
    started = time.monotonic()
    recipe = demo_recipe(lr=plan.lr, batch_size=plan.batch_size)
    recipe_file = stack.work_dir / f"{plan.run}.recipe.json"
    recipe_file.parent.mkdir(parents=True, exist_ok=True)
    recipe_file.write_bytes(msgspec.json.format(msgspec.json.encode(recipe)))
    port = choose()
    services = Services(
        stack.work_dir / "logs" / plan.run,
        stack.environment
        | {
            "HINDSTREAM_RUN__NAME": plan.run,
            "HINDSTREAM_RUN__POLICY": plan.run,
            "HINDSTREAM_RUN__RECIPE": str(recipe_file),
        },
    )
    engine = create_engine(stack.database_url, pool_pre_ping=True)
    user = UserConfig(
        gateway_url=f"http://127.0.0.1:{port}", model="policy", seed=plan.seed, concurrency=plan.concurrency
    )
    try:
        for service in pipeline_services(port):
            services.start(service)
        return asyncio.run(_demo(plan, services, engine, user, console, started))
    finally:
        services.stop()
        engine.dispose()


async def _demo(
    plan: DemoPlan, services: Services, engine: Engine, user: UserConfig, console: Console, started: float
) -> Outcome:
    console.print("waiting for the gateway and for version 0 to be served …")
    await _until(lambda: _serving(engine, plan.run) == 0, services, _START_S, "version 0 is not served")
    await _gateway_answers(user.gateway_url, services)
    questions = HELD_OUT_QUESTIONS * plan.rounds
    console.print(f"asking {len(questions)} held-out questions of version 0 …")
    before = await survey(user, f"{plan.run}-before", questions, temperature=0.7)
    learning_started = time.monotonic()
    await _learn(plan, services, engine, user, console)
    learning_seconds = time.monotonic() - learning_started
    final = _figures(engine, plan.run).newest_version
    await _until(lambda: _serving(engine, plan.run) == final, services, _SETTLE_S, f"version {final} is not served")
    console.print(f"asking the same {len(questions)} questions of version {final} …")
    after = await survey(user, f"{plan.run}-after", questions, temperature=0.7)
    await _until(lambda: _quiet(engine, plan.run, after[-1].turn_id), services, _SETTLE_S, "turns are not recorded")
    with engine.connect() as connection:
        figures = read_figures(connection, plan.run)
        rewards = read_rewards_by_version(connection, plan.run)
    assert final is not None
    return Outcome(
        run=plan.run,
        seed=plan.seed,
        before=before,
        after=after,
        final_version=final,
        figures=figures,
        rewards=rewards,
        drift=_drift(engine, plan.run, final, after),
        seconds=time.monotonic() - started,
        learning_seconds=learning_seconds,
    )


async def _learn(plan: DemoPlan, services: Services, engine: Engine, user: UserConfig, console: Console) -> None:
    stop = asyncio.Event()
    settled = 0

    def may_ask(asked: int) -> bool:
        return asked - settled < _AHEAD * plan.batch_size

    talking = asyncio.create_task(talk(user, f"{plan.run}-talk", stop, may_ask))
    deadline = time.monotonic() + plan.time_limit_s
    title = f"{plan.run}: learning while he talks"
    try:
        with Live(console=console, refresh_per_second=2, transient=False) as live:
            while True:
                with engine.connect() as connection:
                    figures = read_figures(connection, plan.run)
                    rewards = read_rewards_by_version(connection, plan.run)
                    steps = read_steps(connection, plan.run)
                settled = figures.trained + figures.dropped - figures.drops.get("side_turn", 0)
                live.update(figures_table(title, figures, rewards, steps))
                if len(steps) >= plan.updates:
                    return
                services.check()
                if talking.done():
                    talking.result()
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{len(steps)} of {plan.updates} updates after {plan.time_limit_s:.0f} s; the machine is too "
                        f"busy, or a process is stuck: look at {services.log_dir}"
                    )
                await asyncio.sleep(_REFRESH_S)
    finally:
        stop.set()
        await asyncio.gather(talking, return_exceptions=True)


async def _until(done: Callable[[], bool], services: Services, limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        services.check()
        if time.monotonic() > deadline:
            raise UserError(f"{what} after {limit_s:.0f} s; look at {services.log_dir}")
        await asyncio.sleep(_REFRESH_S / 2)


async def _gateway_answers(url: str, services: Services) -> None:
    deadline = time.monotonic() + _START_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as http:
        while time.monotonic() < deadline:
            services.check()
            try:
                async with http.get(f"{url}/healthz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(_REFRESH_S / 2)
    raise UserError(f"the gateway does not answer at {url}; look at {services.log_dir / 'gateway.log'}")


def _figures(engine: Engine, run: str) -> Figures:
    with engine.connect() as connection:
        return read_figures(connection, run)


def _serving(engine: Engine, policy: str) -> int | None:
    with engine.connect() as connection:
        row = connection.execute(
            text(
                "SELECT version FROM weight_loads WHERE policy = :policy AND status = 'serving' "
                "ORDER BY created_at DESC LIMIT 1"
            ),
            {"policy": policy},
        ).one_or_none()
    return None if row is None else int(row.version)


def _quiet(engine: Engine, run: str, last_turn: str) -> bool:
    """The last survey turn is recorded and no finished turn waits for a signal that is on its way."""
    with engine.connect() as connection:
        recorded = connection.execute(select(turns.c.turn_id).where(turns.c.turn_id == last_turn)).one_or_none()
        return recorded is not None and read_figures(connection, run).balance == 0


def _drift(engine: Engine, policy: str, final: int, answers: list[Answered]) -> Drift:
    ids = [answered.turn_id for answered in answers[:_DRIFT_ANSWERS]]
    with engine.connect() as connection:
        rows = connection.execute(
            select(turns.c.prompt_ids, turns.c.response_ids).where(turns.c.turn_id.in_(ids))
        ).all()
        paths = {
            version: Path(path)
            for version, path in connection.execute(
                select(weight_versions.c.version, weight_versions.c.path).where(
                    weight_versions.c.policy == policy, weight_versions.c.version.in_([0, final])
                )
            )
        }
    sampled = [(unpack_ids(p).tolist(), unpack_ids(r).tolist()) for p, r in rows]
    return measure_drift(paths[0], paths[final], sampled)
