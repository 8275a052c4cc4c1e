"""Version 0: the base model, with a manifest like every other version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, select

from learner.checkpoints import copy_model, version_dir, write_version
from learner.commit import add_version
from learner.config import no_fault
from learner.errors import LearnerStopped
from learner.manifest import Lineage, build_manifest, has_weights, read_manifest, weights_digest
from schemas.tables import weight_versions


def ensure_base_version(
    connection: Connection,
    policy: str,
    model_dir: Path,
    weights_dir: Path,
    fault: Callable[[str], None] = no_fault,
) -> bool:
    """Have version 0 of `policy` on disk and, in the caller's transaction, in the database. Returns whether it was
    made now; calling it again does nothing.

    Raises:
        LearnerStopped: `model_dir` holds no model with safetensors, or another model is where version 0 goes.
        OSError: the disk is full or not writable.
    """
    versions = weight_versions.c
    query = select(versions.version).where(versions.policy == policy, versions.version == 0)
    if connection.execute(query).one_or_none() is not None:
        return False
    if not (model_dir / "config.json").is_file() or not has_weights(model_dir):
        raise LearnerStopped(
            f"there is no base model in {model_dir}: it needs config.json and *.safetensors (HINDSTREAM_MODEL)"
        )
    target = version_dir(weights_dir, policy, 0)
    lineage = Lineage(policy=policy, version=0)
    before = read_manifest(target)

    def fill(directory: Path) -> None:
        copy_model(model_dir, directory)
        if before is not None and weights_digest(before) != weights_digest(build_manifest(directory, lineage)):
            raise LearnerStopped(
                f"{target} holds another model than {model_dir}, and this database knows neither: the directory "
                "belongs to another database. Move it away, or choose another one (HINDSTREAM_LEARNER__WEIGHTS_DIR)"
            )

    manifest = write_version(target, lineage, fill, fault=fault)
    return add_version(connection, policy, 0, str(target), manifest)
