"""Before the first micro-batch: the base model is version 0, and the run is there with the recipe that was meant."""

from __future__ import annotations

import logging
from threading import Event

from sqlalchemy import Connection, Engine, select

from learner.base_version import ensure_base_version
from learner.config import LearnerConfig
from learner.database import Stopped, in_transaction
from learner.errors import LearnerStopped
from learner.fold import recipe_of
from schemas.recipes import Recipe
from schemas.tables import runs

log = logging.getLogger(__name__)

_RUN_LOOK_S = 0.5
"""Between looks for the run's row; started together with the learner, the worker makes it seconds later."""


def make_base_version(config: LearnerConfig, engine: Engine, stop: Event) -> None:
    """Have version 0, on disk and announced.

    Raises:
        LearnerStopped: there is no base model, or it cannot be written.
        Stopped: `stop` was set meanwhile.
    """

    def ensure(connection: Connection) -> bool:
        return ensure_base_version(connection, config.policy, config.model_dir, config.weights_dir, config.fault)

    try:
        if in_transaction(engine, stop, ensure):
            log.info("policy %s: version 0 is %s", config.policy, config.model_dir)
    except OSError as err:
        raise not_written(0, err) from err


def wait_for_recipe(config: LearnerConfig, engine: Engine, stop: Event) -> Recipe:
    """The recipe of the run, once the run is there.

    Raises:
        LearnerStopped: the run is another policy's, or has another recipe than the settings name.
        Stopped: `stop` was set meanwhile.
    """

    def look(connection: Connection) -> Recipe | None:
        policy = connection.execute(select(runs.c.policy).where(runs.c.run == config.run)).scalar_one_or_none()
        if policy is None:
            return None
        if policy != config.policy:
            raise LearnerStopped(
                f"run {config.run!r} trains policy {policy!r}, not {config.policy!r} (HINDSTREAM_RUN__POLICY)"
            )
        return recipe_of(connection, config.run)

    said = False
    while (recipe := in_transaction(engine, stop, look)) is None:
        if not said:
            log.info("waiting for run %r; `hindstream worker run` makes it", config.run)
            said = True
        if stop.wait(_RUN_LOOK_S):
            raise Stopped
    if config.recipe_digest not in (None, recipe.digest()):
        raise LearnerStopped(
            f"run {config.run!r} has recipe {recipe.name!r} ({recipe.digest()[:12]}) and the settings name another "
            f"({str(config.recipe_digest)[:12]}). A run keeps its recipe: set HINDSTREAM_RUN__RECIPE back, or "
            "choose another HINDSTREAM_RUN__NAME"
        )
    return recipe


def not_written(version: int, err: OSError) -> LearnerStopped:
    """What to say where a version could not be written: a full disk, for one."""
    before = f"version {version - 1} stays in force" if version else "nothing was changed"
    return LearnerStopped(
        f"version {version} could not be written ({err.strerror or err}: {err.filename or 'weights directory'}); "
        f"{before}. Make room, or choose another directory (HINDSTREAM_LEARNER__WEIGHTS_DIR), and start again: nothing "
        "is lost"
    )
