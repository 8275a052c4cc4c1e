"""The learner: micro-batches in the order of the log, each trained once, each a committed weight version.

A crash at any point loses nothing: before the commit the step is done again from the version before (its files are
replaced), after the commit it is skipped. Which of the two holds is one row in Postgres.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import Connection, Engine, text

from learner import checkpoints
from learner.batches import load_batch
from learner.commit import NewVersion, StepRecord, commit_step
from learner.config import LearnerConfig
from learner.database import Stopped, in_transaction, make_engine
from learner.determinism import settle
from learner.erased import erased_since
from learner.errors import LearnerStopped
from learner.fold import resume
from learner.manifest import Lineage, kind_of, manifest_digest
from learner.micro_batch_log import MicroBatchLog
from learner.policy import Policy
from learner.publishing import filling
from learner.ranks import rank, ranks_joined
from learner.retention import apply_rules, pin_only, rules_of
from learner.startup import make_base_version, not_written, wait_for_recipe
from learner.stored import Version, newest_full, stored_version
from learner.together import follow, leading
from learner.topic import TopicReader
from learner.train_batch import train_batch
from learner.trainer_state import state_file
from learner.upload import Uploads
from learner.watching.observers import Observers
from learner.watching.steps import StepObserver, StepSeen, line
from learner.watching.table import write_definitions
from schemas.chat_tokens import ChatTokens
from schemas.messages import MicroBatchPublished
from schemas.recipes import Recipe, needs_of
from schemas.topics import MICRO_BATCHES

log = logging.getLogger(__name__)

_OVERDUE_S = 15.0
"""A micro-batch that was sent this long ago and was not seen was written at another time than its row says (a clock
that is off by more than the slack below); then the topic is read from its first record."""
_ERASURES_S = 2.0
"""Between two looks for erased samples while nothing is trained. Until the look after an erasure, a learner that is
killed cannot make its state again; a look is one indexed query."""
_CLOCK_SLACK = "1 hour"
"""Records carry the relay's clock, rows the database's. Reading an hour too much costs a second."""

_HOLDER = "the learner, whose adapters are for it"

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


def run_learner(
    config: LearnerConfig,
    stop: threading.Event | None = None,
    watchers: Sequence[Callable[[], StepObserver]] = (),
) -> None:
    """Train until `stop` is set, by SIGTERM or SIGINT too, or `stop_after`; the micro-batch in hand is finished. Each
    of `watchers` opens one that is shown every step. As one of several ranks (`config.ranks`) the first does all this,
    and the others compute with it until it is done.

    Raises:
        LearnerStopped: it cannot go on; the message says why and what to do. The version before stays in force.
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    stop = stop or threading.Event()
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers[number] = signal.signal(number, lambda *_: stop.set())
    try:
        settle(config)
        with ranks_joined(config.ranks, config.device):
            if rank():
                follow(Policy)  # also through SIGTERM: the first rank finishes its micro-batch, and that takes all
            else:
                _lead(config, stop, watchers)
    except Stopped:
        log.info("stopped")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _lead(config: LearnerConfig, stop: threading.Event, watchers: Sequence[Callable[[], StepObserver]]) -> None:
    engine = make_engine(config.database_url, "hindstream-learner")
    observers = Observers(watchers)
    try:
        with leading(Stopped, LearnerStopped), checkpoints.only_writer(config.weights_dir, config.policy):
            checkpoints.clear_leftovers(config.weights_dir, config.policy)
            make_base_version(config, engine, stop)
            recipe = wait_for_recipe(config, engine, stop)
            in_transaction(engine, stop, write_definitions)
            uploads = Uploads(config)
            try:
                _Learner(config, engine, recipe, stop, uploads, observers).run()
            finally:
                uploads.finish(config.upload_wait_s)
    finally:
        observers.close()
        engine.dispose()


class _Learner:
    def __init__(
        self,
        config: LearnerConfig,
        engine: Engine,
        recipe: Recipe,
        stop: threading.Event,
        uploads: Uploads,
        observers: Observers,
    ) -> None:
        self._config, self._engine, self._recipe, self._stop = config, engine, recipe, stop
        self._uploads, self._observers = uploads, observers
        resumed = resume(config, engine, stop)
        self._policy, self._version, self._manifest = resumed.policy, resumed.version, resumed.manifest_sha256
        # A state that had to be made again is worth saving at once.
        self._state_of = -1 if resumed.replayed else self._version
        if config.publish == "adapter" and not self._policy.has_adapter:
            raise LearnerStopped(
                f"the recipe of run {config.run!r} trains all weights, so there is no adapter to publish: give it "
                "[lora], or set HINDSTREAM_LEARNER__PUBLISH to full or delta"
            )
        self._under, self._full = in_transaction(engine, stop, self._bases)
        self._chat = in_transaction(engine, stop, self._tokenizer)
        self._consumed = 0
        log.info("policy %s: training goes on from version %d", config.policy, self._version)

    def run(self) -> None:
        config = self._config
        seq, since = self._next()
        with TopicReader(
            config.bootstrap_servers, MICRO_BATCHES, client_id="hindstream-learner", stop=self._stop
        ) as reader:
            micro_batches = MicroBatchLog(reader, config.run, seq, since)
            looked = erasures = time.monotonic()
            again = 0
            while not self._done():
                message = micro_batches.poll(config.poll_s)
                if message is not None:
                    self._consume(message)
                    looked = time.monotonic()
                    self._outlive_erasure()
                elif time.monotonic() - looked > _OVERDUE_S:
                    looked = time.monotonic()
                    if again != micro_batches.seq and self._overdue(micro_batches.seq):
                        log.warning("micro-batch %d was sent and not seen: reading the topic again", micro_batches.seq)
                        again = micro_batches.seq
                        micro_batches.read_again()
                if message is None and time.monotonic() - erasures > _ERASURES_S:
                    erasures = time.monotonic()
                    self._outlive_erasure()
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
        loaded = in_transaction(
            self._engine, self._stop, lambda connection: load_batch(connection, message, self._chat)
        )
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
            tokenizer=None if self._chat is None else self._chat.fingerprint,
        )
        target = checkpoints.version_dir(config.weights_dir, config.policy, lineage.version)
        checkpoints.refuse_foreign(target, lineage)
        step = train_batch(
            self._policy,
            loaded,
            policy=config.policy,
            version=self._version,
            bound=self._recipe.batch.max_staleness,
        )
        config.fault("after_step")
        made = None
        if step.skipped_reason is None:
            try:
                fill = filling(self._policy, config, lineage.version, self._full, self._under)
                manifest = checkpoints.write_version(target, lineage, fill, fault=config.fault)
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
            if kind_of(made.manifest) == "full":
                self._full = Version(config.policy, made.version, target, made.manifest)
            self._uploads.wake()
            self._prune()
            if self._version - self._state_of >= config.state_every:
                self._save_state()
        seen = StepSeen.of(record)
        self._observers.observe(seen)
        log.info("%s", line(seen))

    def _commit(self, record: StepRecord) -> None:
        def work(connection: Connection) -> bool:
            done = commit_step(connection, record)
            self._config.fault("before_commit")
            return done

        # Not to be given up when a stop is asked for: the step is done, and the database will be back.
        if not in_transaction(self._engine, threading.Event(), work):
            log.info("micro-batch %d was committed, only the answer had been lost", record.message.seq)

    def _bases(self, connection: Connection) -> tuple[Version, Version]:
        """The version whose weights lie under the adapters, which must stay as long as they learn, and the newest full
        version."""
        place, policy, under = self._config.weights_dir, self._config.policy, self._policy.under
        pin_only(connection, policy, under or None, _HOLDER)
        return stored_version(connection, place, policy, under), newest_full(connection, place, policy)

    def _tokenizer(self, connection: Connection) -> ChatTokens | None:
        """That of version 0, where the recipe trains text.

        Raises:
            LearnerStopped: it has none that can be used.
        """
        if not needs_of(self._recipe).text:
            return None
        base = stored_version(connection, self._config.weights_dir, self._config.policy, 0).path
        chat = ChatTokens(base)
        try:
            chat.check()
        except (OSError, ValueError) as err:
            words = f"recipe {self._recipe.name!r} trains text, and version 0 cannot read it"
            raise LearnerStopped(f"{words}: {err}") from err
        return chat

    def _prune(self) -> None:
        config = self._config
        work = partial(
            apply_rules,
            weights_dir=config.weights_dir,
            policy=config.policy,
            rules=rules_of(config),
            fault=config.fault,
        )
        gone = in_transaction(self._engine, self._stop, work).gone
        if gone:
            log.info("deleted the weight files of version %s", ", ".join(map(str, gone)))

    def _outlive_erasure(self) -> None:
        """Save the state where a sample of the versions since the last one was erased: they cannot be made again."""
        if self._state_of == self._version:
            return
        since = partial(erased_since, policy=self._config.policy, begin=self._state_of, end=self._version)
        if in_transaction(self._engine, self._stop, since):
            self._save_state()

    def _save_state(self) -> None:
        if self._state_of == self._version or self._version == 0:
            return
        try:
            self._policy.save_state(
                state_file(self._config.weights_dir, self._config.policy, self._version),
                version=self._version,
                manifest_sha256=self._manifest,
                fault=self._config.fault,
            )
        except OSError as err:
            log.warning("the trainer's state was not saved (%s); a restart makes it again from the log", err)
            return
        self._state_of = self._version
        self._config.fault("after_state_save")
