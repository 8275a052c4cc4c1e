"""Processes that outlive us: started apart, recognised for certain, stopped with all their children.

A pid alone names nobody: the kernel gives it to someone else after a crash or a reboot. A process is known
here by pid, start time and boot, read from /proc, and nothing is ever signalled that is not the process it
was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# How often a process that was asked to stop is looked at.
POLL_S = 0.05
# A log that passed this size is set aside when its service starts; one older log is kept.
LOG_LIMIT_BYTES = 20 * 1024 * 1024

# Held so that a child of ours which ends is reaped by the next `poll`, and is not warned about as unreaped.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class ProcessId:
    """One process, and no other that had or will have its pid."""

    pid: int
    started_ticks: int
    """Clock ticks from boot to the start of the process (field 22 of /proc/PID/stat)."""
    boot_id: str


@dataclass(frozen=True)
class _Stat:
    state: str
    session: int
    tty: int
    started_ticks: int


def boot_id() -> str:
    """The identity of this boot: pids and ticks of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and brackets; the fields that count come after the last bracket.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(fields[0], int(fields[3]), int(fields[4]), int(fields[19]))


def identify(pid: int) -> ProcessId | None:
    """The identity of the process that has `pid` now, or None if none has."""
    stat = _stat(pid)
    return None if stat is None else ProcessId(pid, stat.started_ticks, boot_id())


def is_alive(process: ProcessId) -> bool:
    """True while that very process runs. A zombie, or another process with its pid, does not count."""
    for child in _children:
        child.poll()
    stat = _stat(process.pid)
    return (
        stat is not None
        and stat.state not in "ZX"
        and stat.started_ticks == process.started_ticks
        and process.boot_id == boot_id()
    )


def age_s(process: ProcessId) -> float:
    """Seconds since the process started."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return max(0.0, uptime - process.started_ticks / os.sysconf("SC_CLK_TCK"))


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    cwd: Path,
    env: Mapping[str, str],
    account: tuple[int, int] | None = None,
) -> ProcessId:
    """Start a process in a session of its own, so that it outlives us and no Ctrl-C of ours reaches it.

    Its output is appended to `log`. `cwd` also marks it: see `strays`. `account` is (uid, gid) to run as.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(log.suffix + ".1"))
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
            user=account[0] if account else None,
            group=account[1] if account else None,
            extra_groups=[] if account else None,
        )
    _children.append(child)
    # A child that ended already is a zombie until polled, so /proc still has it.
    process = identify(child.pid)
    assert process is not None, "our own child is in /proc until we wait for it"
    return process


def members(leader: ProcessId) -> list[int]:
    """Living processes of the session that `leader` began, itself included, even when it died before them.

    The kernel gives no pid away while a session bears it; so if another process has the leader's pid now, the
    session is gone and none of its members is left.
    """
    if leader.boot_id != boot_id():
        return []
    now = _stat(leader.pid)
    if now is not None and now.started_ticks != leader.started_ticks:
        return []
    found = []
    for pid, stat in _all():
        ours = stat.session == leader.pid and stat.started_ticks >= leader.started_ticks
        if ours and stat.state not in "ZX":
            found.append(pid)
    return found


def strays(directory: Path, program: str) -> list[int]:
    """Living `program`s at work in `directory` or below that no terminal owns.

    Finds what a killed `up` had started but not yet written down, and children that made sessions of their
    own.
    """
    found = []
    for pid, stat in _all():
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to someone else
            at = Path(os.readlink(f"/proc/{pid}/cwd"))
            name = os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
            here = name.startswith(program) and at.is_relative_to(directory)
            if here and stat.tty == 0 and stat.state not in "ZX":
                found.append(pid)
    return found


def stop(leader: ProcessId, *, first: signal.Signals, grace_s: float) -> None:
    """Ask the leader to stop; after `grace_s` kill it and whatever is left of its session."""
    if is_alive(leader):
        _signal(leader.pid, first)
        wait_until_gone(leader, grace_s)
    kill_all(members(leader))
    wait_until_gone(leader, grace_s)


def kill_all(pids: Sequence[int]) -> None:
    """SIGKILL to each, and wait until they are gone."""
    known = [process for process in (identify(pid) for pid in pids) if process is not None]
    for process in known:
        _signal(process.pid, signal.SIGKILL)
    for process in known:
        wait_until_gone(process, 10.0)


def wait_until_gone(process: ProcessId, seconds: float) -> bool:
    """True once the process has ended, False if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _all() -> Iterator[tuple[int, _Stat]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            stat = _stat(int(entry.name))
            if stat is not None:
                yield int(entry.name), stat
