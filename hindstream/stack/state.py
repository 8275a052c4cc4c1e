"""What the local stack remembers: `stack.json` in its home, written whole or not at all, and a lock beside
it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hindstream.errors import UserError
from hindstream.stack.processes import ProcessId

FILE = "stack.json"
VERSION = 1


@dataclass(frozen=True)
class Service:
    """A service that was started and not stopped since; whether it still runs is another question."""

    process: ProcessId
    port: int
    data: str
    """The directory that its data lie in."""
    log: str
    ready: bool = False
    """False from the start of the process until it answered for the first time."""
    detail: dict[str, str] = field(default_factory=dict)
    """What else `status` shows: dtype, model."""


@dataclass
class State:
    """The content of stack.json."""

    services: dict[str, Service] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)


def read(home: Path) -> State:
    """The state as last written; empty if there is none.

    Raises:
        UserError: the file is there but is not ours to read.
    """
    path = home / FILE
    try:
        raw = json.loads(path.read_text())
        if raw["version"] != VERSION:
            raise UserError(f"{path} is of version {raw['version']}, this program knows {VERSION}")
        services = {
            name: Service(**(entry | {"process": ProcessId(**entry["process"])}))
            for name, entry in raw["services"].items()
        }
        return State(services, raw["ports"])
    except FileNotFoundError:
        return State()
    except PermissionError:
        raise UserError(f"{path} cannot be read by this account; run as the one that started the stack") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); remove it, then `hindstream up` finds its services again"
        ) from None


class StateFile:
    """The state of one home, changed by several threads of the process that holds the lock."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._mutex = threading.Lock()
        self._state = read(home)

    @property
    def state(self) -> State:
        return self._state

    def update(self, change: Callable[[State], None]) -> None:
        """Apply `change` and have the result on disk before returning."""
        with self._mutex:
            change(self._state)
            text = json.dumps({"version": VERSION, **asdict(self._state)}, indent=2)
            write_whole(self._home / FILE, text + "\n")


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def exclusive(home: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a home: one `up` or `down` at a time. The kernel drops it when the holder dies."""
    with (home / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another `hindstream up` or `down` is at work in {home}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
