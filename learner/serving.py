"""Following the topic `weights`: the newest version goes into the policy server, and a canary shows that it did."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from sqlalchemy import Engine, insert, text

from learner.database import make_engine
from learner.manifest import problems, weights_digest
from learner.policy_server import PolicyServer, ServerRefused
from schemas.messages import WEIGHTS_PUBLISHED, WeightsPublished
from schemas.tables import weight_loads
from schemas.topics import WEIGHTS

_log = logging.getLogger(__name__)

_PARTITION = TopicPartition(WEIGHTS, 0)


@dataclass(frozen=True, kw_only=True)
class FollowConfig:
    """One policy server that follows one policy."""

    bootstrap_servers: str
    database_url: str
    policy: str
    server_url: str
    model: str
    """The server's name of the model."""
    api_key: str | None = None
    poll_s: float = 0.2
    """The longest that a stop waits for a quiet topic."""
    retry_s: float = 5.0
    """Between tries of a version that could not be loaded: a server that restarts needs half a minute."""
    check_s: float = 5.0
    """Between looks at the server's tag: one that was restarted serves its base model until this is noticed."""


@dataclass(frozen=True)
class _Load:
    status: str
    detail: str | None
    before: float | None
    after: float | None
    seconds: float


class WeightsLog:
    """The newest announced version of a policy, read from the beginning of the compacted topic."""

    def __init__(self, bootstrap_servers: str, policy: str) -> None:
        self._policy = policy
        self.newest: WeightsPublished | None = None
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers.split(","),
            client_id="hindstream-weights",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self._consumer.assign([_PARTITION])
        self._consumer.seek_to_beginning(_PARTITION)

    def poll(self, seconds: float) -> None:
        """Read what has come, waiting at most `seconds` for the first."""
        for records in self._consumer.poll(timeout_ms=int(seconds * 1000)).values():
            for record in records:
                if dict(record.headers or ()).get("ce_type") != WEIGHTS_PUBLISHED.encode() or record.value is None:
                    continue
                message = msgspec.json.decode(record.value, type=WeightsPublished)
                if message.policy == self._policy and (self.newest is None or message.version > self.newest.version):
                    self.newest = message

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


async def follow(config: FollowConfig, stop: asyncio.Event) -> None:
    """Keep the server at the policy's newest version until `stop`.

    The first announced version is always loaded, whatever the server's tag says: a tag does not name its policy. A
    version that cannot be loaded is recorded as failed, the one before is loaded again, and it is tried once more
    later; a newer version takes its place.
    """
    engine = make_engine(config.database_url, "hindstream-weights")
    log = await asyncio.to_thread(WeightsLog, config.bootstrap_servers, config.policy)
    served: WeightsPublished | None = None
    not_before = next_check = 0.0
    try:
        async with PolicyServer(config.server_url, config.model, config.api_key) as server:
            while not stop.is_set():
                await asyncio.to_thread(log.poll, config.poll_s)
                wanted = log.newest
                if served is not None and time.monotonic() > next_check:
                    next_check = time.monotonic() + config.check_s
                    if not await _still_serves(server, served.version):
                        _log.warning("the server no longer serves version %d: it was restarted", served.version)
                        served = None
                if wanted is None or (served is not None and wanted.version == served.version):
                    continue
                if time.monotonic() < not_before:
                    continue
                load = await _load(server, engine, wanted, served)
                await asyncio.to_thread(_record, engine, config, wanted.version, load)
                if load.status == "serving":
                    served = wanted
                    _log.info("serving version %d of %s after %.1f s", wanted.version, wanted.policy, load.seconds)
                else:
                    not_before = time.monotonic() + config.retry_s
                    _log.error("version %d of %s is not served: %s", wanted.version, wanted.policy, load.detail)
    finally:
        await asyncio.to_thread(log.close)
        engine.dispose()


async def _still_serves(server: PolicyServer, version: int) -> bool:
    """False only where the server says another tag; one that does not answer is asked again later."""
    try:
        return await server.tag() == str(version)
    except ServerRefused:
        return True


async def _load(
    server: PolicyServer, engine: Engine, wanted: WeightsPublished, served: WeightsPublished | None
) -> _Load:
    started = time.monotonic()
    before = after = None
    try:
        manifest = await asyncio.to_thread(_manifest, engine, wanted)
        wrong = await asyncio.to_thread(problems, Path(wanted.path), manifest)
        if wrong:
            return _Load("failed", "; ".join(wrong), None, None, time.monotonic() - started)
        before = await server.canary()
        await server.reload(Path(wanted.path), wanted.version)
        after = await server.canary()
        if served is not None and before == after:
            parent = await asyncio.to_thread(_manifest, engine, served)
            if weights_digest(parent) != weights_digest(manifest):
                raise ServerRefused("the canary's log-prob did not move although the weights on disk did")
    except ServerRefused as err:
        detail = str(err) + await _back(server, served)
        return _Load("failed", detail, before, after, time.monotonic() - started)
    return _Load("serving", None, before, after, time.monotonic() - started)


async def _back(server: PolicyServer, served: WeightsPublished | None) -> str:
    """Load the version before again, since a failed load may have left half of the new one."""
    if served is None:
        return ""
    try:
        await server.reload(Path(served.path), served.version)
    except ServerRefused as err:
        return f"; and version {served.version} could not be loaded again: {err}"
    return f"; version {served.version} is served again"


def _manifest(engine: Engine, message: WeightsPublished) -> dict[str, Any]:
    with engine.connect() as connection:
        manifest: dict[str, Any] = connection.execute(
            text("SELECT manifest FROM weight_versions WHERE policy = :policy AND version = :version"),
            {"policy": message.policy, "version": message.version},
        ).scalar_one()
    return manifest


def _record(engine: Engine, config: FollowConfig, version: int, load: _Load) -> None:
    with engine.begin() as connection:
        attempt = connection.execute(
            text(
                "SELECT coalesce(max(attempt), 0) + 1 FROM weight_loads "
                "WHERE server = :server AND policy = :policy AND version = :version"
            ),
            {"server": config.server_url, "policy": config.policy, "version": version},
        ).scalar_one()
        connection.execute(
            insert(weight_loads).values(
                server=config.server_url,
                policy=config.policy,
                version=version,
                attempt=attempt,
                status=load.status,
                detail=load.detail,
                canary_before=load.before,
                canary_after=load.after,
                seconds=load.seconds,
            )
        )
