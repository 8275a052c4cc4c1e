"""Following the topic `weights`: the policy server serves the newest version, and Postgres says since when."""

from __future__ import annotations

import asyncio
import logging
import time
from threading import Event

import msgspec
from sqlalchemy import Connection, func, insert, select, text

from learner.config import FollowConfig
from learner.database import Stopped, in_transaction, make_engine
from learner.deltas import DeltaFault
from learner.loading import Load, load_version
from learner.manifest import base_of
from learner.policy_server import PolicyServer, ServerAway, ServerRefused
from learner.retention import hold, pin_only
from learner.servable import Servable, Shelf
from learner.stored import stored_version
from learner.topic import TopicReader
from schemas.messages import WEIGHTS_PUBLISHED, WeightsPublished
from schemas.tables import weight_loads, weight_versions
from schemas.topics import WEIGHTS

log = logging.getLogger(__name__)

_LONGEST_RETRY_S = 600.0
_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtextextended('hindstream.weights/' || :server, 0))")
"""One loader a server at a time, whichever process it lives in; the lock goes with the transaction."""


async def follow(config: FollowConfig, stop: asyncio.Event) -> None:
    """Keep the server at the policy's newest version until `stop`; a load in hand is finished first.

    What is in the database when this starts is loaded at once, whatever the server's tag says, since a tag does not
    name its policy. Then each announcement on the topic counts; of several that wait, only the newest is loaded. A
    server that was restarted, and so serves its base model, gets the version again. A version that cannot be loaded is
    recorded as failed and tried again ever more slowly; the one before stays. With `config.version` that one alone is
    served, whatever is announced.

    Raises:
        LookupError: there is no version `config.version`.
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    flag = Event()
    work = asyncio.create_task(asyncio.to_thread(_Follower(config, flag).run))
    asked = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        flag.set()
        asked.cancel()
        await work


class _Follower:
    """The loop, in a thread of its own: every call blocks, and a load is never cut in two by a cancellation."""

    def __init__(self, config: FollowConfig, stop: Event) -> None:
        self._config, self._stop = config, stop
        self._engine = make_engine(config.database_url, "hindstream-weights")
        self._server = PolicyServer(config.server_url, config.model, timeout_s=config.timeout_s, api_key=config.api_key)
        self._wanted: int | None = None
        self._shelf = Shelf(config.assembled_dir, config.weights_dir, config.policy, config.server_url)
        self._serving: Servable | None = None
        self._retry_s, self._not_before, self._next_look = config.retry_s, 0.0, 0.0
        self._away = False

    def run(self) -> None:
        config = self._config
        try:
            if config.version is not None:
                self._stay_at(config.version)
                return
            self._wanted = in_transaction(self._engine, self._stop, self._newest)
            self._keep_up()
            with TopicReader(
                config.bootstrap_servers, WEIGHTS, client_id="hindstream-weights", stop=self._stop
            ) as reader:
                reader.seek_to(None)  # compacted: one message a policy, and some that wait for the cleaner
                while not self._stop.is_set():
                    for kind, value in reader.poll(config.poll_s):
                        self._hear(kind, value)
                    self._keep_up()
        except Stopped:
            log.info("stopped")
        finally:
            self._engine.dispose()

    def _stay_at(self, version: int) -> None:
        """Serve `version` until stopped. Its files are pinned in the server's name, until that serves another one."""
        holder = f"server {self._config.server_url}"
        in_transaction(self._engine, self._stop, lambda connection: self._pin(connection, version, holder))
        self._wanted = version
        while not self._stop.is_set():
            self._keep_up()
            self._stop.wait(self._config.check_s)

    def _pin(self, connection: Connection, version: int, holder: str) -> None:
        pin_only(connection, self._config.policy, version, holder)

    def _hear(self, kind: str | None, value: bytes) -> None:
        if kind != WEIGHTS_PUBLISHED:
            return
        try:
            message = msgspec.json.decode(value, type=WeightsPublished)
        except msgspec.DecodeError as err:
            log.warning("a record of the topic cannot be read and is passed over: %s", err)
            return
        if message.policy == self._config.policy and (self._wanted is None or message.version > self._wanted):
            self._wanted = message.version
            self._retry_s, self._not_before = self._config.retry_s, 0.0

    def _keep_up(self) -> None:
        """Load what is wanted if it is not served."""
        if self._wanted is None:
            return
        try:
            self._look()
            if self._serving is not None and self._serving.version.version == self._wanted:
                return
            if time.monotonic() >= self._not_before:
                self._load(self._wanted)
            self._away = False
        except (ServerAway, ServerRefused) as err:
            if not self._away:
                needs = (
                    "" if isinstance(err, ServerAway) else " (vLLM needs VLLM_SERVER_DEV_MODE=1 and --enable-scale-out)"
                )
                log.warning("waiting for the policy server: %s%s", err, needs)
            self._away = True
            self._not_before = time.monotonic() + self._config.check_s

    def _look(self) -> None:
        """Notice a server that no longer serves what was loaded."""
        if self._serving is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._config.check_s
        tag = self._server.tag()
        if tag != self._serving.tag:
            log.warning("the server is tagged %r, not %r: it was restarted, or others load", tag, self._serving.tag)
            self._serving = None
            self._not_before = 0.0

    def _load(self, version: int) -> None:
        def work(connection: Connection) -> Load | None:
            server = {"server": self._config.server_url}
            if not connection.execute(_LOCK, server).scalar_one():
                return None
            # Retention leaves them until the row says that they are served.
            hold(connection, self._config.policy, 0, version, *self._bases(connection, version))
            load = self._try(connection, version)
            self._serving = load.serving
            self._record(connection, version, load)
            return load

        load = in_transaction(self._engine, self._stop, work)
        if load is None:
            log.info("another process is loading weights into %s", self._config.server_url)
            self._not_before = time.monotonic() + self._config.check_s
        elif load.fault is None:
            log.info("serving version %d of %s after %.1f s", version, self._config.policy, load.seconds)
            self._retry_s, self._not_before = self._config.retry_s, 0.0
        else:
            log.error("version %d of %s is not served: %s", version, self._config.policy, load.fault)
            self._not_before = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    def _newest(self, connection: Connection) -> int | None:
        newest: int | None = connection.execute(
            select(func.max(weight_versions.c.version)).where(weight_versions.c.policy == self._config.policy)
        ).scalar_one()
        return newest

    def _bases(self, connection: Connection, version: int) -> list[int]:
        found = stored_version(connection, self._config.weights_dir, self._config.policy, version)
        base = base_of(found.manifest)
        return [] if base is None else [base]

    def _try(self, connection: Connection, version: int) -> Load:
        try:
            wanted, base = self._shelf.get(connection, version), self._shelf.get(connection, 0)
            if self._server.takes_adapters():
                base = self._shelf.without_adapter(base)
                if wanted.adapter is None:
                    wanted = self._shelf.without_adapter(wanted)
        except (DeltaFault, OSError) as err:
            return Load(f"it was not put together: {err}", None, None, 0.0, self._serving)
        load = load_version(self._server, wanted, self._serving, base)
        if load.fault is None:
            self._shelf.keep_only(wanted)
        return load

    def _record(self, connection: Connection, version: int, load: Load) -> None:
        key = {"server": self._config.server_url, "policy": self._config.policy, "version": version}
        tried = select(func.coalesce(func.max(weight_loads.c.attempt), 0)).where(
            *(weight_loads.c[name] == value for name, value in key.items())
        )
        connection.execute(
            insert(weight_loads).values(
                **key,
                attempt=connection.execute(tried).scalar_one() + 1,
                status="serving" if load.fault is None else "failed",
                detail=load.fault,
                canary_before=load.before,
                canary_after=load.after,
                seconds=load.seconds,
                created_at=func.clock_timestamp(),
            )
        )
