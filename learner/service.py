"""The learner: micro-batches in the order of the log, each trained once, each a committed weight version.

A crash at any point loses nothing: before the commit the step is done again from the version before (its files are
replaced), after the commit it is skipped. Which of the two holds is one row in Postgres.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from datetime import datetime

import torch
from sqlalchemy import Connection, Engine, text

from learner import checkpoints
from learner.batches import load_batch
from learner.commit import NewVersion, StepRecord, commit_step
from learner.config import LEAST_KEPT, LearnerConfig
from learner.database import Stopped, in_transaction, make_engine
from learner.errors import LearnerStopped
from learner.fold import resume
from learner.manifest import Lineage, manifest_digest
from learner.micro_batch_log import MicroBatchLog
from learner.startup import make_base_version, not_written, wait_for_recipe
from learner.topic import TopicReader
from learner.train_batch import train_batch
from learner.trainer_state import state_file, write_state
from schemas.messages import MicroBatchPublished
from schemas.recipes import Recipe
from schemas.topics import MICRO_BATCHES

log = logging.getLogger(__name__)

_OVERDUE_S = 15.0
"""A micro-batch that was sent this long ago and was not seen was written at another time than its row says (a clock
that is off by more than the slack below); then the topic is read from its first record."""
_CLOCK_SLACK = "1 hour"
"""Records carry the relay's clock, rows the database's. Reading an hour too much costs a second."""

_NEXT = text(
    f"""
    SELECT coalesce(min(seq) FILTER (WHERE state = 'published'), max(seq) + 1, 1) AS seq,
           coalesce(min(created_at) FILTER (WHERE state = 'published'), now()) - interval '{_CLOCK_SLACK}' AS since
    FROM micro_batches WHERE run = :run
    """
)
_OVERDUE = text(
    """
    SELECT EXISTS (
        SELECT 1 FROM micro_batches b JOIN outbox o ON o.topic = :topic AND o.message_id = b.micro_batch_id
        WHERE b.run = :run AND b.seq = :seq AND o.sent_at < now() - make_interval(secs => :overdue))
    """
)
_SERVED = text(
    """
    SELECT version FROM (
        SELECT DISTINCT ON (server) policy, version FROM weight_loads WHERE status = 'serving'
        ORDER BY server, created_at DESC) newest
    WHERE policy = :policy
    """
)


def run_learner(config: LearnerConfig, stop: threading.Event | None = None) -> None:
    """Train until `stop` is set, by SIGTERM or SIGINT too, or `stop_after`; the micro-batch in hand is finished.

    Raises:
        LearnerStopped: it cannot go on; the message says why and what to do. The version before stays in force.
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    stop = stop or threading.Event()
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers[number] = signal.signal(number, lambda *_: stop.set())
    if config.threads:
        torch.set_num_threads(config.threads)
    engine = make_engine(config.database_url, "hindstream-learner")
    try:
        with checkpoints.only_writer(config.weights_dir, config.policy):
            make_base_version(config, engine, stop)
            recipe = wait_for_recipe(config, engine, stop)
            _Learner(config, engine, recipe, stop).run()
    except Stopped:
        log.info("stopped")
    finally:
        engine.dispose()
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Learner:
    def __init__(self, config: LearnerConfig, engine: Engine, recipe: Recipe, stop: threading.Event) -> None:
        self._config, self._engine, self._recipe, self._stop = config, engine, recipe, stop
        resumed = resume(config, engine, stop)
        self._policy, self._version, self._manifest = resumed.policy, resumed.version, resumed.manifest_sha256
        # A state that had to be made again is worth saving at once.
        self._state_of = -1 if resumed.replayed else self._version
        self._consumed = 0
        log.info("policy %s: training goes on from version %d", config.policy, self._version)

    def run(self) -> None:
        config = self._config
        seq, since = self._next()
        with TopicReader(
            config.bootstrap_servers, MICRO_BATCHES, client_id="hindstream-learner", stop=self._stop
        ) as reader:
            micro_batches = MicroBatchLog(reader, config.run, seq, since)
            looked, again = time.monotonic(), 0
            while not self._done():
                message = micro_batches.poll(config.poll_s)
                if message is not None:
                    self._consume(message)
                    looked = time.monotonic()
                elif time.monotonic() - looked > _OVERDUE_S:
                    looked = time.monotonic()
                    if again != micro_batches.seq and self._overdue(micro_batches.seq):
                        log.warning("micro-batch %d was sent and not seen: reading the topic again", micro_batches.seq)
                        again = micro_batches.seq
                        micro_batches.read_again()
        self._save_state()

    def _done(self) -> bool:
        limit = self._config.stop_after
        return self._stop.is_set() or (limit is not None and self._consumed >= limit)

    def _next(self) -> tuple[int, datetime]:
        named = {"run": self._config.run}
        row = in_transaction(self._engine, self._stop, lambda connection: connection.execute(_NEXT, named).one())
        return row.seq, row.since

    def _overdue(self, seq: int) -> bool:
        named = {"topic": MICRO_BATCHES, "run": self._config.run, "seq": seq, "overdue": _OVERDUE_S}
        return bool(
            in_transaction(
                self._engine, self._stop, lambda connection: connection.execute(_OVERDUE, named).scalar_one()
            )
        )

    def _consume(self, message: MicroBatchPublished) -> None:
        config, started = self._config, time.monotonic()
        if message.policy != config.policy or message.recipe_digest != self._recipe.digest():
            raise LearnerStopped(
                f"micro-batch {message.seq} was made for policy {message.policy!r} under recipe "
                f"{message.recipe_digest[:12]}; run {config.run!r} is of {config.policy!r} and "
                f"{self._recipe.digest()[:12]}"
            )
        loaded = in_transaction(self._engine, self._stop, lambda connection: load_batch(connection, message))
        if loaded is None:
            return
        config.fault("after_load")
        lineage = Lineage(
            policy=message.policy,
            version=self._version + 1,
            parent_version=self._version,
            run=message.run,
            micro_batch_id=message.micro_batch_id,
            micro_batch_digest=message.digest,
            recipe_name=self._recipe.name,
            recipe_digest=message.recipe_digest,
        )
        target = checkpoints.version_dir(config.weights_dir, config.policy, lineage.version)
        checkpoints.refuse_foreign(target, lineage)
        step = train_batch(
            self._policy.trainer,
            loaded,
            policy=config.policy,
            version=self._version,
            bound=self._recipe.batch.max_staleness,
        )
        config.fault("after_step")
        made = None
        if step.skipped_reason is None:
            try:
                manifest = checkpoints.write_version(target, lineage, self._policy.write, fault=config.fault)
            except OSError as err:
                raise not_written(lineage.version, err) from err
            made = NewVersion(lineage.version, str(target), manifest)
        record = StepRecord(
            message=message,
            made=made,
            skipped_reason=step.skipped_reason,
            metrics=step.metrics,
            ends=step.ends,
            tokens=step.tokens,
            seconds=time.monotonic() - started,
        )
        self._commit(record)
        config.fault("after_commit")
        self._consumed += 1
        if made is not None:
            self._version, self._manifest = made.version, manifest_digest(made.manifest)
            self._prune()
            if self._version - self._state_of >= config.state_every:
                self._save_state()
        log.info(
            "micro-batch %d: %s, %d trained, %d dropped, %.1f s",
            message.seq,
            f"version {made.version}" if made else f"no step ({step.skipped_reason})",
            step.samples,
            len(step.ends) - step.samples,
            record.seconds,
        )

    def _commit(self, record: StepRecord) -> None:
        def work(connection: Connection) -> bool:
            done = commit_step(connection, record)
            self._config.fault("before_commit")
            return done

        # Not to be given up when a stop is asked for: the step is done, and the database will be back.
        if not in_transaction(self._engine, threading.Event(), work):
            log.info("micro-batch %d was committed, only the answer had been lost", record.message.seq)

    def _prune(self) -> None:
        named = {"policy": self._config.policy}
        served = in_transaction(
            self._engine, self._stop, lambda connection: connection.execute(_SERVED, named).scalars().all()
        )
        last = max(self._config.keep_last, LEAST_KEPT)
        keep = {0, *served, *range(self._version - last + 1, self._version + 1)}
        gone = checkpoints.prune(self._config.weights_dir, self._config.policy, keep)
        if gone:
            log.info("deleted the weight files of version %s", ", ".join(map(str, gone)))

    def _save_state(self) -> None:
        if self._state_of == self._version or self._version == 0:
            return
        try:
            write_state(
                state_file(self._config.weights_dir, self._config.policy, self._version),
                version=self._version,
                run=self._policy.run,
                manifest_sha256=self._manifest,
                trainer=self._policy.trainer.state_dict(),
            )
        except OSError as err:
            log.warning("the trainer's state was not saved (%s); a restart makes it again from the log", err)
            return
        self._state_of = self._version
