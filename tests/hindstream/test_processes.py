"""A process is recognised by more than its pid, and stopped with its children."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hindstream.stack import processes
from hindstream.stack.processes import ProcessId

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
# Starts a child in its own session, says its pid, ignores the polite signal.
STUBBORN = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(60)
"""


def spawn(tmp_path: Path, command: list[str]) -> ProcessId:
    return processes.spawn(command, log=tmp_path / "log", cwd=tmp_path, env=dict(os.environ))


def wait_for_text(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline, f"{path} stays empty"
        time.sleep(0.05)
    return path.read_text()


def test_a_pid_that_somebody_else_has_now_is_neither_alive_nor_signalled() -> None:
    stranger = subprocess.Popen(SLEEPER)
    try:
        now = processes.identify(stranger.pid)
        assert now is not None
        # What our notes say of a process of ours that died: same pid, started earlier.
        remembered = dataclasses.replace(now, started_ticks=now.started_ticks - 1)
        assert processes.is_alive(now)
        assert not processes.is_alive(remembered)
        assert processes.members(remembered) == []
        processes.stop(remembered, first=signal.SIGKILL, grace_s=0.1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_of_another_boot_is_not_alive() -> None:
    me = processes.identify(os.getpid())
    assert me is not None
    assert processes.is_alive(me)
    assert not processes.is_alive(dataclasses.replace(me, boot_id="another"))


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    identity = processes.identify(child.pid)
    assert identity is not None
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not processes.is_alive(identity)
    child.wait()


def test_stop_ends_a_process_that_ignores_the_signal_and_its_children(tmp_path: Path) -> None:
    leader = spawn(tmp_path, [sys.executable, "-c", STUBBORN])
    child = processes.identify(int(wait_for_text(tmp_path / "log")))
    assert child is not None
    processes.stop(leader, first=signal.SIGTERM, grace_s=0.5)
    assert not processes.is_alive(leader)
    assert not processes.is_alive(child)


def test_children_are_found_after_their_leader_was_killed(tmp_path: Path) -> None:
    leader = spawn(tmp_path, [sys.executable, "-c", STUBBORN])
    child = processes.identify(int(wait_for_text(tmp_path / "log")))
    assert child is not None
    os.kill(leader.pid, signal.SIGKILL)
    assert processes.wait_until_gone(leader, 10)
    assert processes.members(leader) == [child.pid]
    processes.kill_all(processes.members(leader))
    assert not processes.is_alive(child)


def test_strays_are_known_by_where_they_work(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    ours, other = spawn(here, SLEEPER), spawn(elsewhere, SLEEPER)
    try:
        assert processes.strays(here.resolve(), "python") == [ours.pid]
        assert processes.strays(here.resolve(), "postgres") == []
    finally:
        processes.kill_all([ours.pid, other.pid])


def test_a_large_log_is_set_aside_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOG_LIMIT_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("0123456789 and more")
    process = processes.spawn([sys.executable, "-c", "print('new')"], log=log, cwd=tmp_path, env=dict(os.environ))
    assert processes.wait_until_gone(process, 20)
    assert log.read_text() == "new\n"
    assert (tmp_path / "log.1").read_text() == "0123456789 and more"
