"""A whole pipeline of real processes for one test: its own broker and Postgres, the session's vLLM server."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, create_engine, text

from hindstream.services import Service, Services
from hindstream.stack.local import Stack
from hindstream.stack.ports import choose
from migrations import upgrade
from schemas.recipes import Recipe

_ANSWER_S = 180.0
"""An answer on two cores that a learner, a JVM and vLLM share."""


@dataclass(frozen=True)
class Said:
    """One answer of the gateway: text, ids, and whether it was recorded."""

    text: str
    session_id: str
    turn_id: str
    recorded: str


class Pipeline:
    """Broker, Postgres and the pipeline's processes, all addressed through settings in the environment."""

    def __init__(self, directory: Path, policy_url: str, recipe: Recipe, run: str) -> None:
        self.run = run
        self.policy_url = policy_url
        self.stack = Stack(directory / "home")
        endpoints = self.stack.up(("broker", "postgres"))
        assert endpoints.database_url is not None
        assert endpoints.bootstrap_servers is not None
        self.database_url = endpoints.database_url.replace("postgresql://", "postgresql+psycopg://")
        upgrade(self.database_url)
        self.engine: Engine = create_engine(self.database_url, pool_pre_ping=True)
        recipe_file = directory / "recipe.json"
        recipe_file.write_bytes(msgspec.json.encode(recipe))
        self.gateway_port = choose()
        self.services = Services(
            directory / "logs",
            {
                "HINDSTREAM_HOME": str(self.stack.home),
                "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": endpoints.bootstrap_servers,
                "HINDSTREAM_DATABASE__URL": endpoints.database_url,
                "HINDSTREAM_POLICY__URL": policy_url,
                "HINDSTREAM_RUN__NAME": run,
                "HINDSTREAM_RUN__POLICY": run,
                "HINDSTREAM_RUN__RECIPE": str(recipe_file),
                "HINDSTREAM_WORKER__LEASE_S": "10",
            },
        )

    def start(self, name: str, *arguments: str) -> None:
        """Start one process of the pipeline."""
        self.services.start(Service(name=name, arguments=arguments))

    def start_gateway(self) -> None:
        """Start the gateway and wait until it answers."""
        self.start("gateway", "gateway", "run", "--port", str(self.gateway_port))
        self.wait(self._healthy, 60, "the gateway does not answer")

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.gateway_port}/healthz", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def say(self, session: str, messages: list[dict[str, Any]], **more: Any) -> Said:
        """One request through the gateway; `headers` in `more` are added."""
        headers = {"content-type": "application/json", "X-Session-Id": session, **more.pop("headers", {})}
        body = {"model": "policy", "messages": messages, "max_tokens": 24, **more}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.gateway_port}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers=headers,
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as response:
            plain = json.load(response)
            return Said(
                text=plain["choices"][0]["message"]["content"] or "",
                session_id=response.headers["X-Session-Id"],
                turn_id=response.headers["X-Turn-Id"],
                recorded=response.headers["X-Hindstream-Recorded"],
            )

    def rows(self, query: str, **values: Any) -> list[Any]:
        """The rows of a query, read in a transaction of their own."""
        with self.engine.connect() as connection:
            return list(connection.execute(text(query), values))

    def value(self, query: str, **values: Any) -> Any:
        """The single value of a query."""
        with self.engine.connect() as connection:
            return connection.execute(text(query), values).scalar_one()

    def ledger(self) -> dict[str, int]:
        """The run's ledger."""
        (row,) = self.rows("SELECT * FROM ledger WHERE run = :run", run=self.run)
        return dict(row._mapping)

    def wait(self, done: Callable[[], bool], seconds: float, what: str, *, watch: bool = True) -> None:
        """Wait until `done`; fails with the processes' logs when one ends or the time is over."""
        deadline = time.monotonic() + seconds
        while not done():
            if watch:
                self.services.check()
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-12:])
                    for log in sorted(self.services.log_dir.glob("*.log"))
                )
                raise AssertionError(f"{what} after {seconds} s\n{logs}")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop everything that was started here."""
        self.services.stop()
        self.engine.dispose()
        self.stack.remove()
