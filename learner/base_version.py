"""Version 0: the base model, with a manifest like every other version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, select

from learner.checkpoints import copy_model, version_dir, write_version
from learner.commit import add_version
from learner.config import no_fault
from learner.manifest import Lineage
from schemas.tables import weight_versions


class BaseModelMissing(LookupError):
    """The base model's directory holds no model."""


def ensure_base_version(
    engine: Engine, policy: str, model_dir: Path, weights_dir: Path, fault: Callable[[str], None] = no_fault
) -> None:
    """Have version 0 of `policy` on disk and in the database. Calling it again does nothing.

    Raises:
        BaseModelMissing: `model_dir` holds no HuggingFace model.
    """
    query = select(weight_versions.c.version).where(weight_versions.c.policy == policy, weight_versions.c.version == 0)
    with engine.connect() as connection:
        if connection.execute(query).one_or_none() is not None:
            return
    if not (model_dir / "config.json").is_file() or not list(model_dir.glob("*.safetensors")):
        raise BaseModelMissing(f"{model_dir} holds no model (config.json and *.safetensors); check the setting `model`")
    target = version_dir(weights_dir, policy, 0)
    manifest = write_version(
        target, Lineage(policy=policy, version=0), lambda directory: copy_model(model_dir, directory), fault=fault
    )
    with engine.begin() as connection:
        add_version(connection, policy, 0, str(target), manifest)
