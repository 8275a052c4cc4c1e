"""The learner: micro-batches in the order of the log, each trained once, each a committed weight version.

A crash at any point loses nothing: before the commit the step is done again from the version before (its files are
replaced), after the commit it is skipped. Which of the two holds is one row in Postgres.
"""

from __future__ import annotations

import logging
import signal
import threading
import time

import torch
from sqlalchemy import Connection, Engine, select, text

from learner import checkpoints
from learner.base_version import ensure_base_version
from learner.batches import Loaded, load_samples, micro_batch_state
from learner.collate import InvalidSample
from learner.commit import NewVersion, SampleEnd, StepRecord, commit_step
from learner.config import LearnerConfig
from learner.database import Stopped, in_transaction, make_engine
from learner.manifest import Lineage
from learner.micro_batch_log import MicroBatchLog
from learner.options import step_options
from learner.policy import Policy
from schemas.messages import MicroBatchPublished
from schemas.recipes import Recipe, recipe_from_dict
from schemas.states import DROP_REASONS
from schemas.tables import runs

_log = logging.getLogger(__name__)

_RUN_WAIT_S = 60.0
"""The worker makes the run when it starts; started together, it comes seconds before or after the learner."""


class LearnerHeld(RuntimeError):
    """The learner must not go on: what is wrong, and what to do. Nothing was changed."""


def run_learner(config: LearnerConfig) -> None:
    """Train until stopped by SIGTERM or SIGINT (the micro-batch in hand is finished), or `stop_after`.

    Raises:
        LearnerHeld: the run does not exist, or asks for what is not there.
        BatchChanged: a micro-batch is not the one that was announced.
        CheckpointMissing, BaseModelMissing: files that should be on disk are not.
        OSError: the weights cannot be written; the version before stays in force.
    """
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    if config.threads:
        torch.set_num_threads(config.threads)
    engine = make_engine(config.database_url, "hindstream-learner")
    try:
        ensure_base_version(engine, config.policy, config.model_dir, config.weights_dir, config.fault)
        recipe = _recipe(engine, config, stop)
        if recipe is not None:
            _Learner(config, engine, recipe, stop).run()
    except Stopped:
        _log.info("stopped while the database was away")
    finally:
        engine.dispose()


def _recipe(engine: Engine, config: LearnerConfig, stop: threading.Event) -> Recipe | None:
    """The recipe of the run's row; None where the stop came first."""
    deadline = time.monotonic() + _RUN_WAIT_S
    while not stop.is_set():
        with engine.connect() as connection:
            row = connection.execute(select(runs.c.recipe, runs.c.policy).where(runs.c.run == config.run)).one_or_none()
        if row is not None:
            if row.policy != config.policy:
                raise LearnerHeld(f"run {config.run!r} trains policy {row.policy!r}, not {config.policy!r}")
            return recipe_from_dict(row.recipe)
        if time.monotonic() > deadline:
            raise LearnerHeld(f"there is no run {config.run!r}; `hindstream worker run` makes it")
        stop.wait(config.poll_s)
    return None


class _Learner:
    def __init__(self, config: LearnerConfig, engine: Engine, recipe: Recipe, stop: threading.Event) -> None:
        self._config, self._engine, self._recipe, self._stop = config, engine, recipe, stop
        self._policy = self._load_newest()
        self._consumed = 0

    def run(self) -> None:
        config = self._config
        log = MicroBatchLog(config.bootstrap_servers, config.run)
        try:
            while not self._done():
                for message in log.poll(config.poll_s):
                    self._consume(message)
                    if self._done():
                        return
        finally:
            log.close()

    def _done(self) -> bool:
        return self._stop.is_set() or (
            self._config.stop_after is not None and self._consumed >= self._config.stop_after
        )

    def _load_newest(self) -> Policy:
        version = in_transaction(self._engine, self._stop, self._newest_version)
        _log.info("policy %s: training goes on from version %d", self._config.policy, version)
        return Policy(self._config, step_options(self._recipe, self._config.tokens_per_forward), version)

    def _newest_version(self, connection: Connection) -> int:
        query = text("SELECT max(version) FROM weight_versions WHERE policy = :policy")
        return int(connection.execute(query, {"policy": self._config.policy}).scalar_one())

    def _consume(self, message: MicroBatchPublished) -> None:
        started = time.monotonic()
        loaded = in_transaction(self._engine, self._stop, lambda connection: self._load(connection, message))
        if loaded is None:
            return
        if message.recipe_digest != self._recipe.digest():
            raise LearnerHeld(
                f"micro-batch {message.seq} was made under recipe {message.recipe_digest[:12]}, and run "
                f"{message.run!r} now has {self._recipe.digest()[:12]}"
            )
        self._config.fault("after_load")
        record = self._train(message, loaded, started)
        self._config.fault("before_commit")
        in_transaction(self._engine, self._stop, lambda connection: self._commit(connection, record))
        self._config.fault("after_commit")
        self._consumed += 1
        if record.made is not None:
            self._policy.version = record.made.version
            self._prune()
        _log.info(
            "micro-batch %d: %s, %d trained, %d dropped, %.1f s",
            message.seq,
            f"version {record.made.version}" if record.made else f"no step ({record.skipped_reason})",
            sum(end.drop_reason is None for end in record.ends),
            sum(end.drop_reason is not None for end in record.ends),
            record.seconds,
        )

    @staticmethod
    def _load(connection: Connection, message: MicroBatchPublished) -> list[Loaded] | None:
        """The samples; None where the micro-batch is consumed."""
        state = micro_batch_state(connection, message.micro_batch_id)
        if state is None:
            raise LearnerHeld(
                f"micro-batch {message.micro_batch_id} (seq {message.seq}) is on the log and not in the database: "
                "they do not belong together"
            )
        return None if state == "consumed" else load_samples(connection, message)

    def _train(self, message: MicroBatchPublished, loaded: list[Loaded], started: float) -> StepRecord:
        version, bound = self._policy.version, self._recipe.batch.max_staleness
        use, ends = [], {}
        for one in loaded:
            staleness = version - one.oldest_version
            drop = _why_not(one, staleness, bound)
            ends[one.sample.sample_id] = SampleEnd(one.sample.sample_id, staleness, *drop)
            if drop[0] is None:
                use.append(one)
        if use:
            result = self._policy.train([one.sample for one in use])
            metrics, skipped, carried = result.metrics, result.skipped_reason, result.carried
        else:
            metrics, skipped, carried = {}, "masked_batch", []
        self._config.fault("after_step")
        for one, did in zip(use, carried, strict=True):
            reason = skipped or (None if did else "no_signal")
            if reason is not None:
                end = ends[one.sample.sample_id]
                ends[end.sample_id] = SampleEnd(end.sample_id, end.staleness, reason, DROP_REASONS[reason])
        trained = [one for one in use if ends[one.sample.sample_id].drop_reason is None]
        metrics["staleness_mean"] = sum(version - t.oldest_version for t in trained) / len(trained) if trained else None
        metrics["staleness_max"] = max((float(version - t.oldest_version) for t in trained), default=None)
        made = None
        if skipped is None:
            lineage = Lineage(
                policy=message.policy,
                version=version + 1,
                parent_version=version,
                run=message.run,
                micro_batch_id=message.micro_batch_id,
                micro_batch_digest=message.digest,
                recipe_name=self._recipe.name,
                recipe_digest=message.recipe_digest,
            )
            manifest = self._policy.write(lineage, self._config.fault)
            path = self._policy.directory(version + 1)
            made = NewVersion(version=version + 1, parent_version=version, path=str(path), manifest=manifest)
        return StepRecord(
            message=message,
            made=made,
            skipped_reason=skipped,
            metrics=metrics,
            ends=list(ends.values()),
            tokens=sum(len(one.sample.response_ids) for one in trained),
            seconds=time.monotonic() - started,
        )

    @staticmethod
    def _commit(connection: Connection, record: StepRecord) -> None:
        if not commit_step(connection, record):
            _log.info("micro-batch %d was committed before its answer was lost", record.message.seq)

    def _prune(self) -> None:
        version = self._policy.version
        with self._engine.connect() as connection:
            served = connection.execute(
                text(
                    "SELECT DISTINCT ON (server) version FROM weight_loads WHERE policy = :policy "
                    "AND status = 'serving' ORDER BY server, created_at DESC"
                ),
                {"policy": self._config.policy},
            ).scalars()
            # A server serves the version before until it has loaded this one, so two more than asked are kept.
            keep = {0, *served, *range(version - max(self._config.keep_last, 2) + 1, version + 1)}
        checkpoints.prune(self._config.weights_dir, self._config.policy, keep, {version, version - 1})


def _why_not(one: Loaded, staleness: int, bound: int) -> tuple[str, str] | tuple[None, None]:
    """Why a sample is not trained at its use: too stale, or not sound."""
    if staleness > bound:
        return "stale", f"{staleness} versions behind at its use, {bound} allowed"
    try:
        one.sample.check()
    except InvalidSample as err:
        reason = err.reason if err.reason in DROP_REASONS else "hint_failed"
        return reason, str(err)
    return None, None
