"""Copies of versions in object storage, made behind the learner's back: a step never waits for them.

A version is announced once it is whole on the local disk; its copy comes later, and until it is there retention keeps
the local files. What is missing is read from the database, so a crash loses no copy: the next process goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from learner.config import LearnerConfig
from learner.database import Stopped, in_transaction, make_engine
from learner.manifest import base_of, has_weights
from learner.storage import Storage
from learner.stored import Version, stored_version
from schemas.database import in_words

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 600.0
"""A storage that is away is asked after five seconds, then ever more rarely; ten minutes late at most when it is
back."""

_MISSING = text(
    """
    SELECT v.version FROM weight_versions v
    WHERE v.policy = :policy AND NOT EXISTS (
        SELECT 1 FROM weight_uploads u
        WHERE u.policy = v.policy AND u.version = v.version AND u.url = :url AND u.status = 'uploaded')
    ORDER BY v.version
    """
)
_RECORD = text(
    """
    INSERT INTO weight_uploads (policy, version, url, status, attempts, detail, bytes, seconds, uploaded_at)
    VALUES (:policy, :version, :url, :status, 1, :detail, :bytes, :seconds,
            CASE WHEN :status = 'uploaded' THEN clock_timestamp() END)
    ON CONFLICT (policy, version, url) DO UPDATE
    SET status = excluded.status, attempts = weight_uploads.attempts + 1, detail = excluded.detail,
        bytes = excluded.bytes, seconds = excluded.seconds, uploaded_at = excluded.uploaded_at
    """
)


class Uploads:
    """Makes every missing copy, oldest first, in a thread of its own, until `finish`."""

    def __init__(self, config: LearnerConfig) -> None:
        self._config = config
        self._stop, self._news, self._ending = Event(), Event(), Event()
        self._thread = Thread(target=self._run, name="uploads", daemon=True)
        if config.upload_url:
            self._thread.start()

    def wake(self) -> None:
        """There is a new version."""
        self._news.set()

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` for the copies that are missing, then end."""
        if not self._config.upload_url:
            return
        self._ending.set()
        self._news.set()
        self._thread.join(seconds)
        self._stop.set()
        if self._thread.is_alive():
            log.warning("not every version is at %s yet; the next learner goes on", self._config.upload_url)

    def _run(self) -> None:
        config = self._config
        engine = make_engine(config.database_url, "hindstream-uploads")
        wait = _FIRST_RETRY_S
        try:
            while True:
                ending = self._ending.is_set()  # before the look, so that the last version is seen
                self._news.clear()
                left = upload_missing(config, engine, self._stop)
                if ending:
                    return
                self._news.wait(wait if left else None)
                wait = min(2 * wait, _LONGEST_RETRY_S) if left else _FIRST_RETRY_S
        except Stopped:
            log.info("stopped before every version was copied; the next learner goes on")
        except SQLAlchemyError as err:
            log.error("no more copies are made, the database refused: %s", in_words(err))  # noqa: TRY400
        finally:
            engine.dispose()


def upload_missing(config: LearnerConfig, engine: Engine, stop: Event) -> list[int]:
    """Copy each version that is not at `config.upload_url` and has its files here. Returns those that are still
    missing; the reason is in the table `weight_uploads`. After a failure the rest is not tried: the storage is likely
    away.

    Raises:
        Stopped: `stop` was set meanwhile.
    """
    assert config.upload_url is not None
    storage: Storage | None = None

    def find(connection: Connection) -> list[Version]:
        named = {"policy": config.policy, "url": config.upload_url}
        numbers = connection.execute(_MISSING, named).scalars()
        found = [stored_version(connection, config.weights_dir, config.policy, number) for number in numbers]
        return [version for version in found if has_weights(version.path)]

    missing = in_transaction(engine, stop, find)
    for place, version in enumerate(missing):
        if stop.is_set():
            raise Stopped
        started = time.monotonic()
        row: dict[str, Any] = {"policy": config.policy, "version": version.version, "url": config.upload_url}
        try:
            storage = storage or Storage(config.upload_url, config.upload_options)
            row |= {"status": "uploaded", "detail": None, "bytes": storage.put(version, config.fault)}
        except Exception as err:  # each storage's library raises its own; all are recorded and tried again
            detail = f"{type(err).__name__}: {err}"
            log.warning("version %d is not at %s: %s", version.version, config.upload_url, detail)
            row |= {"status": "failed", "detail": detail, "bytes": 0}
        _record(engine, stop, {**row, "seconds": time.monotonic() - started})
        if row["status"] == "failed":
            return [version.version for version in missing[place:]]
        log.info("version %d is at %s", version.version, config.upload_url)
    return []


def fetch(connection: Connection, storage: Storage, weights_dir: Path, policy: str, version: int) -> list[int]:
    """Have a version's files again, and those of its base where they are gone. Returns the versions that were fetched.

    Raises:
        LookupError: there is no such version.
        StorageFault: there is no whole copy of it, or a file is not what the manifest names.
        OSError: the disk is full; and whatever the storage's library raises.
    """
    wanted = stored_version(connection, weights_dir, policy, version)
    base = base_of(wanted.manifest)
    fetched = [] if base is None else fetch(connection, storage, weights_dir, policy, base)
    if has_weights(wanted.path):
        return fetched
    storage.get(policy, version, wanted.manifest, wanted.path)
    return [*fetched, version]


def _record(engine: Engine, stop: Event, row: Mapping[str, Any]) -> None:
    in_transaction(engine, stop, lambda connection: connection.execute(_RECORD, dict(row)).rowcount)
