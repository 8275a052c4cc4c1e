"""What the three services have in common: start once, find again, wait until it answers, stop for certain."""

from __future__ import annotations

import abc
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hindstream.errors import UserError
from hindstream.settings import Settings, variable_name
from hindstream.stack import ports, processes
from hindstream.stack.processes import ProcessId
from hindstream.stack.state import Service, State, StateFile

# How often a service that starts is asked whether it is ready.
POLL_S = 0.1
# A service that takes long says so this often.
HEARTBEAT_S = 10.0
# Lines of a dead service's log that are shown: enough for a Python or Java error, not a screenful.
TAIL_LINES = 12


@dataclass(frozen=True)
class Context:
    """What a service needs to know of the stack that it belongs to."""

    home: Path
    settings: Settings
    say: Callable[[str], None]
    memory: StateFile
    cancelled: threading.Event
    """Set when the person pressed Ctrl-C: whoever waits stops waiting."""


class Managed(abc.ABC):
    """One service of the local stack. Its methods may block for long and are called from a thread of its
    own."""

    name: str
    """What the person calls it, and its directory in the home."""
    program: str
    """How the name of its executable begins: what `strays` may end."""
    port_setting: tuple[str, ...]
    stop_signal: signal.Signals
    stop_grace_s: float
    """How long it may take to stop by itself before it is killed."""
    start_timeout_s: float

    def __init__(self, context: Context) -> None:
        self.context = context
        self.directory = context.home / self.name
        self.log = context.home / "logs" / f"{self.name}.log"

    @abc.abstractmethod
    def fixed_port(self) -> int:
        """The port that the settings ask for; 0 for any."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Everything before the process: programs, first data. Called with no process of the service
        alive."""

    @abc.abstractmethod
    def launch(self, port: int) -> ProcessId:
        """Start the process and return at once."""

    @abc.abstractmethod
    def is_ready(self, port: int) -> bool:
        """True once it answers a real request. Called again and again; must return within seconds."""

    @abc.abstractmethod
    def finish(self, port: int) -> None:
        """What has to be done once it answers, each time that it was started. Must be idempotent."""

    def detail(self) -> dict[str, str]:
        """What makes a running process another one than the settings ask for; shown by `status`."""
        return {}

    # --- what the stack calls
    # -------------------------------------------------------------------------------------

    def up(self) -> Service:
        """Have it running and ready.

        Raises:
            UserError: it cannot be; the message says why and what to do.
        """
        begun = time.monotonic()
        known = self.context.memory.state.services.get(self.name)
        if known and processes.is_alive(known.process):
            if self._matches(known):
                self._await_ready(known, begun)
                self.say(f"already running at {ports.LOOPBACK}:{known.port}")
                return self._remember(replace(known, ready=True))
            self.say("runs with other settings than those in force; restarting it")
            self.down()
            known = None
        self._clear_leftovers(known)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        port = self._port()
        started = Service(self.launch(port), port, str(self.directory), str(self.log), detail=self.detail())
        self._remember(started)
        self._await_ready(started, begun)
        self.finish(port)
        self.say(f"ready at {ports.LOOPBACK}:{port} after {time.monotonic() - begun:.1f} s")
        return self._remember(replace(started, ready=True))

    def down(self) -> bool:
        """Have it stopped, with everything that it started. False if nothing was running."""
        known = self.context.memory.state.services.get(self.name)
        ours = processes.members(known.process) if known else []
        if known:
            processes.stop(known.process, first=self.stop_signal, grace_s=self.stop_grace_s)
        left = processes.strays(self.directory.resolve(), self.program)
        processes.kill_all(left)
        self.context.memory.update(self._forget)
        return bool(ours or left)

    def say(self, text: str) -> None:
        """One line to the person, under the service's name."""
        self.context.say(f"{self.name}: {text}")

    # --- parts
    # ----------------------------------------------------------------------------------------------------

    def _matches(self, known: Service) -> bool:
        return known.detail == self.detail() and self.fixed_port() in (0, known.port)

    def _clear_leftovers(self, known: Service | None) -> None:
        left = processes.members(known.process) if known else []
        left = sorted({*left, *processes.strays(self.directory.resolve(), self.program)})
        if left:
            self.say(f"ending {len(left)} left-over process(es) of a start that was killed")
            processes.kill_all(left)

    def _port(self) -> int:
        state = self.context.memory.state
        port, remark = ports.settle(
            fixed=self.fixed_port(),
            remembered=state.ports.get(self.name),
            what=self.name,
            variable=variable_name(self.port_setting),
            avoid=frozenset(state.ports.values()),
        )
        if remark:
            self.say(remark)
        self.context.memory.update(lambda state: state.ports.__setitem__(self.name, port))
        return port

    def _forget(self, state: State) -> None:
        state.services.pop(self.name, None)

    def _remember(self, service: Service) -> Service:
        def change(state: State) -> None:
            state.services[self.name] = service

        self.context.memory.update(change)
        return service

    def _await_ready(self, service: Service, begun: float) -> None:
        spoken = time.monotonic()
        while not self.is_ready(service.port):
            now = time.monotonic()
            if self.context.cancelled.is_set():
                raise UserError(f"{self.name}: interrupted while it started")
            if not processes.is_alive(service.process):
                raise UserError(f"{self.name} ended while it started; the end of {self.log}:\n{self._tail()}")
            if now - begun > self.start_timeout_s:
                raise UserError(
                    f"{self.name} does not answer after {self.start_timeout_s:.0f} s; "
                    f"look at {self.log}, then `hindstream down` and `hindstream up`"
                )
            if now - spoken > HEARTBEAT_S:
                self.say(f"starting, {now - begun:.0f} s so far")
                spoken = now
            time.sleep(POLL_S)

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)
