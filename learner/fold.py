"""The policy at its newest version, exactly as the trainer that made it had it in memory.

A weight version is a fold over the micro-batch log: base model, then each consumed micro-batch in order. The newest
whole trainer state saves most of the work; what follows it is trained again, from the same samples in the same order,
and compared with the version on disk. No row is written: those steps are committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from sqlalchemy import Connection, Engine, select

from learner.batches import load_trained
from learner.checkpoints import beside, locate
from learner.config import LearnerConfig
from learner.database import Stopped, in_transaction
from learner.deltas import DeltaFault, apply_delta
from learner.determinism import differences, threads_of
from learner.erased import refuse_erased
from learner.errors import LearnerStopped
from learner.manifest import base_of, has_weights, kind_of, problems, result_files
from learner.options import step_options
from learner.policy import Policy
from learner.trainer_state import read_states, state_file
from schemas.chat_tokens import ChatTokens
from schemas.recipes import InvalidRecipe, Recipe, recipe_from_dict
from schemas.tables import runs, weight_versions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """The policy at `version`; `replayed` steps were trained again."""

    policy: Policy
    version: int
    manifest_sha256: str
    replayed: int


def recipe_of(connection: Connection, run: str) -> Recipe:
    """The recipe that a run keeps.

    Raises:
        LearnerStopped: the stored recipe is not the one that its digest names.
        LookupError: there is no such run.
    """
    row = connection.execute(select(runs.c.recipe, runs.c.recipe_digest).where(runs.c.run == run)).one_or_none()
    if row is None:
        raise LookupError(run)
    try:
        recipe = recipe_from_dict(row.recipe)
    except InvalidRecipe as err:
        raise LearnerStopped(f"run {run!r}: {err}; it was made by another version of Hindstream") from err
    if recipe.digest() != row.recipe_digest:
        raise LearnerStopped(
            f"run {run!r}: its recipe has digest {recipe.digest()[:12]} and the run says {row.recipe_digest[:12]}; the "
            "row was changed, or another version of Hindstream made it. Start a run with another name"
        )
    return recipe


def resume(config: LearnerConfig, engine: Engine, stop: Event) -> Resumed:
    """The policy at its newest version, ready for `config.run`'s next micro-batch.

    Raises:
        LearnerStopped: the base model, a sample or the newest version is not as it was.
        Stopped: `stop` was set meanwhile.
    """
    versions = in_transaction(engine, stop, partial(version_rows, policy=config.policy))
    newest = versions[-1]
    policy, replayed = fold(config, engine, stop, versions, state_until=newest.version)
    if len(versions) > 1:
        _compare(policy, config, versions, replayed=replayed)
    if policy.run != config.run:
        policy.change_run(config.run, _options(config, engine, stop, config.run), newest.version)
    return Resumed(policy, newest.version, newest.manifest_sha256, replayed)


def fold(
    config: LearnerConfig, engine: Engine, stop: Event, versions: list[Any], *, state_until: int
) -> tuple[Policy, int]:
    """The policy at the last of `versions` (rows from 0 on), and how many steps were trained again for it: from the
    newest whole state of a version up to `state_until`, or from version 0 where there is none or that is 0.

    Raises:
        LearnerStopped: the base model or a sample is not as it was, or a sample was erased.
        Stopped: `stop` was set meanwhile.
    """
    base = locate(versions[0].path, config.weights_dir, config.policy, 0)
    wrong = problems(base, versions[0].manifest)
    if wrong:
        raise LearnerStopped(f"version 0 of policy {config.policy!r} is not whole: {'; '.join(wrong)}")
    options = partial(_options, config, engine, stop)
    state = _newest_state(config, versions[: state_until + 1])
    begin = state["version"] if state else 0
    last = versions[-1].version
    in_transaction(engine, stop, partial(refuse_erased, policy=config.policy, begin=begin, end=last))
    run = state["run"] if state else (versions[1].run if len(versions) > 1 else config.run)
    make = partial(
        Policy,
        base,
        run=run,
        options=options(run),
        dtype=config.dtype,
        device=config.device,
        recompute=config.recompute,
    )
    under = state["under"] if state else 0
    if under:
        with _whole(config, versions, under) as directory:
            policy = make(under=(under, directory))
    else:
        policy = make()
    if state:
        policy.load_state(state_file(config.weights_dir, config.policy, begin))
    _replay(policy, versions[begin + 1 :], options, engine, stop, ChatTokens(base))
    return policy, len(versions) - 1 - begin


def version_rows(connection: Connection, policy: str) -> list[Any]:
    """Rows of every version, from 0 without a gap.

    Raises:
        LearnerStopped: there is a gap, or no row.
    """
    rows = list(
        connection.execute(
            select(weight_versions).where(weight_versions.c.policy == policy).order_by(weight_versions.c.version)
        )
    )
    if [row.version for row in rows] != list(range(len(rows))) or not rows:
        raise LearnerStopped(f"policy {policy!r}: its weight versions have a gap; restore the rows of weight_versions")
    return rows


def _options(config: LearnerConfig, engine: Engine, stop: Event, run: str) -> Any:
    recipe = in_transaction(engine, stop, partial(recipe_of, run=run))
    return step_options(recipe, config.tokens_per_forward)


def _newest_state(config: LearnerConfig, versions: list[Any]) -> dict[str, Any] | None:
    for state in read_states(config.weights_dir, config.policy, versions[-1].version):
        row = versions[state["version"]]
        if state["manifest_sha256"] == row.manifest_sha256 and _has_all(config, versions, state["under"]):
            return state
    return None


def _replay(
    policy: Policy,
    versions: list[Any],
    options: Callable[[str], Any],
    engine: Engine,
    stop: Event,
    chat: ChatTokens,
) -> None:
    if versions:
        log.info("making the trainer's state again from %d micro-batches", len(versions))
    for row in versions:
        if stop.is_set():
            raise Stopped
        if row.run != policy.run:
            policy.change_run(row.run, options(row.run), row.version - 1)
        batch = row.micro_batch_id
        samples = in_transaction(engine, stop, partial(load_trained, micro_batch_id=batch, chat=chat))
        with threads_of(row.manifest):
            result = policy.train(samples) if samples else None
        if result is None or result.skipped_reason:
            raise LearnerStopped(
                f"version {row.version} cannot be made again: its micro-batch {batch} now gives no step "
                f"({result.skipped_reason if result else 'no trained samples'}). Start a policy of another name from "
                "its weights (HINDSTREAM_MODEL, HINDSTREAM_RUN__POLICY)"
            )


def _compare(policy: Policy, config: LearnerConfig, versions: list[Any], *, replayed: int) -> None:
    newest = versions[-1]
    directory = _place(config, newest)
    if not has_weights(directory):
        log.warning("version %d has no weight files in %s; it cannot be compared", newest.version, directory)
        return
    if kind_of(newest.manifest) == "adapter":
        difference = policy.largest_adapter_difference(directory)
    else:
        with _whole(config, versions, newest.version) as whole:
            difference = policy.largest_difference(whole)
    if difference and not replayed:
        raise LearnerStopped(
            f"the weights in {directory} are not those of the trainer that made them (off by up to {difference:.3g}); "
            f"see `hindstream weights verify {newest.version}`"
        )
    if difference:
        log.warning(
            "version %d made again is off by up to %.3g (%s). Training goes on from it",
            newest.version,
            difference,
            "; ".join(differences(newest.manifest, config)) or "nothing that is known differs",
        )


@contextmanager
def _whole(config: LearnerConfig, versions: list[Any], version: int) -> Iterator[Path]:
    """The directory of a version with all its weights; a delta is put together for the while."""
    row = versions[version]
    directory, base = _place(config, row), base_of(row.manifest)
    if base is None:
        yield directory
        return
    with beside(directory, ".whole-") as scratch:
        try:
            apply_delta(_place(config, versions[base]), directory, result_files(row.manifest), scratch)
        except DeltaFault as err:
            raise LearnerStopped(f"version {row.version}: {err}; see `hindstream weights verify`") from err
        yield scratch


def _has_all(config: LearnerConfig, versions: list[Any], version: int) -> bool:
    """Whether all weights of a version can be had without training."""
    row = versions[version]
    base = base_of(row.manifest)
    there = has_weights(_place(config, row)) and (base is None or has_weights(_place(config, versions[base])))
    return there and kind_of(row.manifest) != "adapter"


def _place(config: LearnerConfig, row: Any) -> Path:
    return locate(row.path, config.weights_dir, config.policy, row.version)
