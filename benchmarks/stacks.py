"""A local stack for one benchmark: in a directory of its own, and gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hindstream.stack.local import Endpoints, Stack
from migrations import upgrade


@dataclass(frozen=True)
class BenchStack:
    """`directory` is for files; `home` is the stack's own in it."""

    directory: Path
    home: Path
    endpoints: Endpoints

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        assert self.endpoints.bootstrap_servers is not None
        return self.endpoints.bootstrap_servers

    @property
    def url(self) -> str:
        """The database's address as SQLAlchemy takes it."""
        assert self.endpoints.database_url is not None
        return self.endpoints.database_url.replace("postgresql://", "postgresql+psycopg://")

    def environment(self, policy_url: str) -> dict[str, str]:
        """The settings by which processes find it; `policy_url` is the model server's."""
        return {
            "HINDSTREAM_HOME": str(self.home),
            "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "HINDSTREAM_DATABASE__URL": self.endpoints.database_url or "",
            "HINDSTREAM_POLICY__URL": policy_url,
        }


@contextmanager
def bench_stack(console: Console, *services: str) -> Iterator[BenchStack]:
    """`services` running, a database with every table; what they say goes to `console`."""
    with tempfile.TemporaryDirectory(prefix="hindstream-bench-") as made:
        directory = Path(made)
        directory.chmod(0o711)  # Postgres runs as another account where this is root
        stack = Stack(directory / "home", say=lambda line: console.print(line, highlight=False))
        try:
            bench = BenchStack(directory, stack.home, stack.up(services))
            if "postgres" in services:
                upgrade(bench.url)
            yield bench
        finally:
            stack.down()
