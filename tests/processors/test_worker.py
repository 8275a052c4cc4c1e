"""The worker's parts without a broker: services side by side, retries, watermarks, configuration, the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from processors.batcher import BatcherConfig
from processors.config import RecorderConfig, RunConfig, WorkerConfig, WorkerMisconfigured
from processors.dead_letters import Delivery
from processors.health import Health
from processors.idle import IdleConfig
from processors.recorder import chunks
from processors.relay import RelayConfig
from processors.retrying import until_done
from processors.services import run_together
from processors.watermarks import OffsetGap, Watermarks
from processors.worker import EXIT_OK
from schemas.database import is_refused, is_transient, make_engine
from schemas.recipes import InvalidRecipe, Recipe, recipe_named
from tests.processors.conversations import Recording, next_state, turn

ROOT = Path(__file__).parents[2]


def config(url: str = "postgresql+psycopg://nobody@127.0.0.1:1/none", **more: Any) -> WorkerConfig:
    fields: dict[str, Any] = {
        "bootstrap_servers": "127.0.0.1:1",
        "database_url": url,
        "pool_size": 2,
        "run": RunConfig(run="live", policy="policy", recipe=recipe_named("combine")),
        "recorder": RecorderConfig(data_dir=Path("/nowhere"), blob_dir=Path("/nowhere")),
        "evaluators": None,
        "batcher": BatcherConfig(),
        "relay": RelayConfig(bootstrap_servers="127.0.0.1:1"),
        "idle": IdleConfig(idle_s=60.0, every_s=1.0),
    }
    return WorkerConfig(**{**fields, **more})


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({"roles": ("agents", "poet")}, WorkerMisconfigured, "no role poet; there are: agents, evaluators"),
        ({"roles": ()}, WorkerMisconfigured, "no role given"),
        ({"roles": ("evaluators",)}, WorkerMisconfigured, "needs the addresses of its model servers"),
        (
            {
                "roles": ("agents",),
                "run": RunConfig(run="r", policy="p", recipe=Recipe(name="mute", description="nobody judges")),
            },
            InvalidRecipe,
            "neither judge nor hint",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(fields: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        config(**fields).check()


def test_the_password_is_not_in_the_printed_configuration() -> None:
    assert "hunter2" not in repr(config("postgresql+psycopg://me:hunter2@h/db"))


async def test_one_failing_service_stops_all_and_is_told() -> None:
    stopped = []

    async def good(stop: asyncio.Event) -> None:
        await stop.wait()
        stopped.append("good")

    async def bad(stop: asyncio.Event) -> None:
        raise RuntimeError("no luck")

    health = Health()
    assert not await run_together({"good": good, "bad": bad}, asyncio.Event(), grace_s=5.0, health=health)
    assert stopped == ["good"]
    assert health.parts["bad"] == ("failed", "RuntimeError: no luck")


async def test_a_stop_lets_services_finish_and_cancels_those_that_do_not() -> None:
    ended = []

    async def quick(stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(0.01)
        ended.append("finished")

    async def stuck(stop: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    assert await run_together({"quick": quick, "stuck": stuck}, stop, grace_s=0.2, health=Health())
    assert ended == ["finished", "cancelled"]


async def test_a_service_that_ends_by_itself_is_a_fault() -> None:
    async def short(stop: asyncio.Event) -> None:
        return

    health = Health()
    assert not await run_together({"short": short}, asyncio.Event(), grace_s=1.0, health=health)
    assert "ended without being told to" in health.in_words()


async def test_what_passes_is_tried_again_and_what_does_not_is_raised() -> None:
    tries = []

    async def attempt() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("away")
        return "done"

    health = Health()
    waits = await until_done(attempt, transient=lambda e: isinstance(e, OSError), health=health, part="p")
    assert (waits, tries) == ("done", [0, 1, 2])
    assert health.parts["p"] == ("ok", "")

    async def broken() -> None:
        raise ValueError("for good")

    with pytest.raises(ValueError, match="for good"):
        await until_done(broken, transient=lambda e: isinstance(e, OSError), health=health, part="p")


def test_no_offset_beyond_what_is_recorded_is_committed() -> None:
    marks = Watermarks()
    assert marks.clamp({("t", 0): 5}) == {}
    marks.advance(1, 1, [("t", 0, 3), ("t", 1, 9), ("t", 0, 4)])
    assert marks.clamp({("t", 0): 9, ("t", 1): 4, ("t", 2): 7}) == {("t", 0): 5, ("t", 1): 4}
    marks.advance(1, 1, [("t", 0, 3)])
    assert marks.clamp({("t", 0): 9}) == {("t", 0): 5}, "a repeat moves nothing back"


def test_an_offset_that_never_came_is_an_error() -> None:
    marks = Watermarks()
    marks.advance(1, 1, [("t", 0, 3)])
    with pytest.raises(OffsetGap, match="t/0: offsets 4 to 5 were never delivered"):
        marks.advance(1, 1, [("t", 0, 6)])


def test_a_new_generation_of_the_group_starts_from_what_it_is_given() -> None:
    marks = Watermarks()
    marks.advance(1, 1, [("t", 0, 3)])
    marks.advance(1, 2, [("t", 0, 50)])
    assert marks.clamp({("t", 0): 99}) == {("t", 0): 4}, "records of an older generation move nothing"
    marks.advance(2, 2, [("t", 0, 100)])
    assert marks.clamp({("t", 0): 999}) == {("t", 0): 101}


def test_large_batches_are_cut_by_bytes() -> None:
    def sized(offset: int, size: int) -> Delivery:
        return Delivery("t", 0, offset, None, [], b"x" * size)

    parts = list(chunks([sized(0, 6), sized(1, 6), sized(2, 30), sized(3, 1), sized(4, 1)], limit=12))
    assert [[one.offset for one in part] for part in parts] == [[0, 1], [2], [3, 4]]
    assert list(chunks([])) == []


def test_which_faults_pass() -> None:
    away = make_engine("postgresql+psycopg://me@127.0.0.1:1/db", pool_size=1, application_name="t")
    with pytest.raises(OperationalError) as refused:
        away.connect()
    assert is_transient(refused.value)
    assert is_transient(PoolTimeout("all in use"))
    assert not is_transient(ValueError("no database error"))
    assert not is_refused(refused.value)


def test_a_wrong_password_or_name_is_no_outage(migrated_database_url: str) -> None:
    for wrong in (migrated_database_url.replace("@", "x@"), migrated_database_url + "_not_there"):
        with pytest.raises(OperationalError) as told:
            make_engine(wrong, pool_size=1, application_name="t").connect()
        assert not is_transient(told.value), told.value


def start(url: str, directory: Path, roles: list[str], **more: Any) -> subprocess.Popen[str]:
    told = {
        "bootstrap": "127.0.0.1:1",
        "url": url,
        "topic": "none",
        "roles": roles,
        "batch_events": 8,
        "dead_letter_limit": 9,
        "idle_s": 3600.0,
        "directory": str(directory),
        **more,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.processors.worker_process", json.dumps(told)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def stopped(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_roles_without_agents_need_no_broker_and_no_faust(recording: Recording, tmp_path: Path) -> None:
    recording.record(turn("a"), next_state("n", "a"))
    process = start(recording.engine.url.render_as_string(hide_password=False), tmp_path, ["idle"], idle_s=0.0)
    deadline = time.monotonic() + 60
    while recording.one("SELECT count(*) FROM outbox") == (0,):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    loaded = Path(f"/proc/{process.pid}/maps").read_text() if sys.platform == "linux" else ""
    code, output = stopped(process)
    assert code == EXIT_OK, output
    assert "1 sessions were silent" in output
    assert "faust" not in loaded


@pytest.mark.parametrize("roles", [["agents"], ["idle", "batcher"]])
def test_a_stop_while_everything_is_away_ends_at_once(tmp_path: Path, roles: list[str]) -> None:
    process = start("postgresql+psycopg://nobody@127.0.0.1:1/none", tmp_path, roles)
    time.sleep(3.0)
    assert process.poll() is None, "a database that is away at the start is waited for"
    begun = time.monotonic()
    code, output = stopped(process)
    assert code == EXIT_OK, output
    assert time.monotonic() - begun < 10
    assert "waiting" in output


def test_a_stop_while_the_broker_is_away_ends_at_once(recording: Recording, tmp_path: Path) -> None:
    url = recording.engine.url.render_as_string(hide_password=False)
    process = start(url, tmp_path, ["agents", "relay"])
    time.sleep(4.0)
    assert process.poll() is None
    code, output = stopped(process)
    assert code == EXIT_OK, output
    assert "agents: waiting" in output


def test_the_command_line_says_what_to_do_about_a_wrong_role() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "hindstream", "worker", "run", "--roles", "poet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert "no role poet; there are: agents, evaluators, batcher, relay, idle" in told.stderr
    assert "Traceback" not in told.stderr
