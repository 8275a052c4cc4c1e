"""The stack as one thing: `Stack(home).up(("broker", "postgres"))` gives the addresses; `down()` stops it."""

from __future__ import annotations

import concurrent.futures
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hindstream.errors import UserError
from hindstream.settings import Settings
from hindstream.stack import postgres, preflight, processes, state
from hindstream.stack.broker import Broker
from hindstream.stack.ports import LOOPBACK
from hindstream.stack.postgres import Postgres
from hindstream.stack.service import Context, Managed
from hindstream.stack.state import Service, StateFile
from hindstream.stack.vllm import Vllm

KINDS: dict[str, type[Managed]] = {"broker": Broker, "postgres": Postgres, "vllm": Vllm}
ALL = tuple(KINDS)


@dataclass(frozen=True)
class Endpoints:
    """Where the services of a local stack are; None for one that does not run."""

    bootstrap_servers: str | None
    database_url: str | None
    """With the password in it: not for printing."""
    policy_url: str | None


class Stack:
    """The local stack of one home directory."""

    def __init__(
        self,
        home: Path,
        settings: Settings | None = None,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        self.home = home.expanduser().resolve()
        self.settings = settings or Settings()
        self._say = say

    def up(self, services: Iterable[str] = ALL) -> Endpoints:
        """Start the named services together and wait until each answers. What runs already is left as it is.

        Raises:
            UserError: some could not be started (the others stay up); the message has a line for each.
        """
        wanted = _checked(services)
        preflight.check(self.home, self.settings.cache.expanduser())
        cancelled = threading.Event()
        with state.exclusive(self.home, self._say):
            context = Context(self.home, self.settings, self._say, StateFile(self.home), cancelled)
            with concurrent.futures.ThreadPoolExecutor(max_workers=len(ALL)) as pool:
                starts = {name: pool.submit(KINDS[name](context).up) for name in wanted}
                try:
                    concurrent.futures.wait(starts.values())
                except BaseException:
                    cancelled.set()  # Ctrl-C: leaving the pool waits for the threads, so they must stop waiting too
                    raise
            failed = []
            for start in starts.values():
                error = start.exception()
                if isinstance(error, UserError):
                    failed.append(str(error))
                elif error is not None:
                    raise error
            if failed:
                raise UserError("\nhindstream: ".join(failed))
        return self.endpoints()

    def down(self, services: Iterable[str] = ALL) -> list[str]:
        """Stop the named services; the names of those that were running."""
        wanted = _checked(services)
        if not self.home.is_dir():
            return []
        with state.exclusive(self.home, self._say):
            context = Context(self.home, self.settings, self._say, StateFile(self.home), threading.Event())
            with concurrent.futures.ThreadPoolExecutor(max_workers=len(ALL)) as pool:
                stops = {name: pool.submit(KINDS[name](context).down) for name in wanted}
            return [name for name, stop in stops.items() if stop.result()]

    def remove(self) -> None:
        """Stop everything and delete the home with all its data, also a database cluster that it only links to."""
        self.down()
        shutil.rmtree((self.home / Postgres.name).resolve(), ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def endpoints(self) -> Endpoints:
        """The addresses of what runs now."""
        ports = {name: service.port for name, service in self.running().items()}
        return Endpoints(
            bootstrap_servers=f"{LOOPBACK}:{ports['broker']}" if "broker" in ports else None,
            database_url=postgres.url(self.home / "postgres", ports["postgres"]) if "postgres" in ports else None,
            policy_url=f"http://{LOOPBACK}:{ports['vllm']}" if "vllm" in ports else None,
        )

    def running(self) -> dict[str, Service]:
        """The services whose process lives and has answered."""
        return {name: service for name, service in self.known().items() if service.ready and alive(service)}

    def known(self) -> dict[str, Service]:
        """The services that were started and not stopped, dead ones too."""
        return state.read(self.home).services

    def log_of(self, service: str) -> Path:
        """The log file of a service."""
        return self.home / "logs" / f"{_checked([service])[0]}.log"


def alive(service: Service) -> bool:
    """True while the service's very process runs."""
    return processes.is_alive(service.process)


def _checked(services: Iterable[str]) -> list[str]:
    wanted = list(services)
    for name in wanted:
        if name not in KINDS:
            raise UserError(f"{name!r} is no service of the local stack; those are {', '.join(ALL)}")
    return wanted
