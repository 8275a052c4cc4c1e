"""The pipeline's processes as a person would start them: the command line, one log file each."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hindstream.errors import UserError
from hindstream.settings import child_environment

_STOP_S = 30.0
"""A learner that is asked to stop finishes its step first: about 10 s on two busy cores."""
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""
_LOG_TAIL = 15
"""Lines of a failed process's log that are shown: enough for the error, few enough to read."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process: its name, and the arguments of `hindstream` that start it."""

    name: str
    arguments: tuple[str, ...]


class Services:
    """Starts processes, notices when one ends, stops them all.

    Args:
        log_dir: where `NAME.log` files go.
        environment: settings that every process gets, over the inherited ones.
        tied: have the kernel ask them to stop when this process dies, however it does.
    """

    def __init__(self, log_dir: Path, environment: dict[str, str], *, tied: bool = False) -> None:
        self.log_dir = log_dir
        self.environment = child_environment(OMP_WAIT_POLICY="PASSIVE", PYTHONUNBUFFERED="1", **environment)
        self._tied = tied
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, service: Service) -> None:
        """Start one process in a session of its own, so that Ctrl-C reaches only us and we stop it in order."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        with (self.log_dir / f"{service.name}.log").open("ab") as log:
            self._running[service.name] = subprocess.Popen(
                [sys.executable, "-m", "hindstream", *service.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
                preexec_fn=_stop_with_parent if self._tied else None,
            )

    def pid(self, name: str) -> int:
        """Process id of a started service."""
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """`kill -9` the service and everything that it started, as a crash would."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def finish(self, name: str, seconds: float) -> None:
        """Wait until a service ends by itself.

        Raises:
            UserError: it ended with an error, or not in time.
        """
        try:
            code = self._running[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise UserError(f"{name} has not ended after {seconds:.0f} s:\n{self.tail(name)}") from None
        del self._running[name]
        if code != 0:
            raise UserError(f"{name} ended with code {code}:\n{self.tail(name)}")

    def check(self) -> None:
        """Nothing to do while all run.

        Raises:
            UserError: a process ended, with the end of its log.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                raise UserError(
                    f"{name} ended with code {process.returncode}; the end of {self.log_dir / name}.log:\n"
                    + self.tail(name)
                )

    def tail(self, name: str) -> str:
        """The last lines of a service's log."""
        lines = (self.log_dir / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL:])

    def stop(self) -> None:
        """Ask every process to finish what it holds, then end those that do not."""
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._running.clear()


def _stop_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def pipeline_services(gateway_port: int) -> list[Service]:
    """What serves, records, evaluates, learns and reloads; the addresses come from the settings."""
    return [
        Service(name="worker", arguments=("worker", "run")),
        Service(name="weights", arguments=("weights", "follow")),
        Service(name="learner", arguments=("learner", "run")),
        Service(name="gateway", arguments=("gateway", "run", "--port", str(gateway_port))),
    ]
