"""Which versions keep their files: nothing that somebody uses, asked for, or needs to be whole is ever deleted.

Who deletes and who is about to use a version meet at one advisory lock a version: a loader holds it shared, retention
takes it alone, and looks again at who needs what once it has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from learner.checkpoints import locate, prune
from learner.config import LEAST_KEPT, LearnerConfig, no_fault
from learner.manifest import PRUNING, base_of, has_weights, kind_of

log = logging.getLogger(__name__)

_VERSIONS = text("SELECT version, path, manifest FROM weight_versions WHERE policy = :policy ORDER BY version")
_SERVED = text(
    """
    SELECT version, string_agg(server, ', ' ORDER BY server) AS servers FROM (
        SELECT DISTINCT ON (server) server, policy, version FROM weight_loads WHERE status = 'serving'
        ORDER BY server, created_at DESC) newest
    WHERE policy = :policy GROUP BY version
    """
)
_PINNED = text(
    "SELECT version, string_agg(holder, ', ' ORDER BY holder) AS holders FROM weight_pins WHERE policy = :policy "
    "GROUP BY version"
)
_UPLOADED = text("SELECT version FROM weight_uploads WHERE policy = :policy AND url = :url AND status = 'uploaded'")
_NAME = "hashtextextended('hindstream.version/' || :policy || '/' || :version, 0)"
_ALONE = text(f"SELECT pg_try_advisory_xact_lock({_NAME})")
_SHARED = text(f"SELECT pg_advisory_xact_lock_shared({_NAME})")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the settings say: the newest `keep_last` versions and every `keep_every`th (0: none) stay; with `deltas` the
    newest full version too, since the next delta is made from it; with `upload_url` each stays until its copy is
    there."""

    keep_last: int
    keep_every: int = 0
    deltas: bool = False
    upload_url: str | None = None


def rules_of(config: LearnerConfig) -> Rules:
    """The rules that a learner is told."""
    return Rules(
        keep_last=config.keep_last,
        keep_every=config.keep_every,
        deltas=config.publish == "delta",
        upload_url=config.upload_url,
    )


@dataclass(frozen=True)
class Use:
    """What others need, by version: who serves it, who pinned it, what is copied already."""

    served: Mapping[int, str]
    pinned: Mapping[int, str]
    uploaded: frozenset[int]


def reasons(manifests: Mapping[int, Mapping[str, Any]], rules: Rules, use: Use) -> dict[int, list[str]]:
    """Why each version keeps its files, in words; a version without a reason may lose them.

    Args:
        manifests: of every version whose files are there, and of no other.
        rules: see `Rules`.
        use: see `Use`.
    """
    found: dict[int, list[str]] = {version: [] for version in manifests}
    newest = max(found, default=0)
    last = max(rules.keep_last, LEAST_KEPT)
    full = [version for version, manifest in manifests.items() if kind_of(manifest) == "full"]
    for version, why in found.items():
        if version == 0:
            why.append("the base model")
        elif version > newest - last:
            why.append(f"one of the newest {last}")
        if rules.keep_every and version and version % rules.keep_every == 0:
            why.append(f"every {rules.keep_every}th is kept")
        if version in use.served:
            why.append(f"served by {use.served[version]}")
        if version in use.pinned:
            why.append(f"pinned by {use.pinned[version]}")
        if rules.upload_url and version not in use.uploaded:
            why.append(f"not yet at {rules.upload_url}")
        if rules.deltas and version == max(full, default=0):
            why.append("base of the next delta")
    # From the newest down, since a base is older than what is made from it.
    for version in sorted(found, reverse=True):
        base = base_of(manifests[version])
        if found[version] and base in found:
            found[base].append(f"base of version {version}")
    return found


@dataclass(frozen=True)
class Pruned:
    """`gone`: versions whose files were, or in a dry run would be, deleted. `kept`: why each other one stays."""

    gone: list[int]
    kept: dict[int, list[str]]


def apply_rules(
    connection: Connection,
    weights_dir: Path,
    policy: str,
    rules: Rules,
    *,
    dry_run: bool = False,
    fault: Callable[[str], None] = no_fault,
) -> Pruned:
    """Delete the files of versions that nobody needs, in the caller's transaction. Rows and manifests stay.

    A version that is being loaded somewhere is left for the next time.
    """
    rows = connection.execute(_VERSIONS, {"policy": policy}).all()
    places = {row.version: locate(row.path, weights_dir, policy, row.version) for row in rows}
    manifests = {row.version: row.manifest for row in rows if has_weights(places[row.version])}
    free = [v for v, why in reasons(manifests, rules, _use(connection, policy, rules)).items() if not why]
    held = {v for v in free if not connection.execute(_ALONE, {"policy": policy, "version": str(v)}).scalar_one()}
    kept = reasons(manifests, rules, _use(connection, policy, rules))
    for version in held:
        kept[version].append("being loaded")
        base = base_of(manifests[version])
        if base in kept:
            kept[base].append(f"base of version {version}")
    gone = [version for version in free if not kept[version]]
    kept = {version: why for version, why in kept.items() if why}
    if not dry_run:
        half = [v for v, place in places.items() if (place / PRUNING).exists()]  # a crash stopped their deletion
        for version in [*half, *gone]:
            prune(places[version], fault=fault)
    return Pruned(gone, kept)


def hold(connection: Connection, policy: str, *versions: int) -> None:
    """Keep retention from these versions until the caller's transaction ends; waits where it is deleting one."""
    for version in sorted(set(versions)):
        connection.execute(_SHARED, {"policy": policy, "version": str(version)})


def pin(connection: Connection, policy: str, version: int, holder: str) -> bool:
    """Keep a version's files until `holder` unpins it. False where `holder` has pinned it already.

    Raises:
        LookupError: there is no such version.
    """
    hold(connection, policy, version)
    statement = text(
        "INSERT INTO weight_pins (policy, version, holder) VALUES (:policy, :version, :holder) "
        "ON CONFLICT DO NOTHING RETURNING version"
    )
    named = {"policy": policy, "version": version, "holder": holder}
    try:
        return connection.execute(statement, named).one_or_none() is not None
    except IntegrityError as err:
        raise LookupError(f"policy {policy!r} has no version {version}") from err


def pin_only(connection: Connection, policy: str, version: int | None, holder: str) -> None:
    """Have `holder` pin just this version, or none."""
    statement = text("DELETE FROM weight_pins WHERE policy = :policy AND holder = :holder")
    connection.execute(statement, {"policy": policy, "holder": holder})
    if version is not None:
        pin(connection, policy, version, holder)


def unpin(connection: Connection, policy: str, version: int, holder: str) -> bool:
    """Take `holder`'s pin back. False where there was none."""
    statement = text(
        "DELETE FROM weight_pins WHERE policy = :policy AND version = :version AND holder = :holder RETURNING version"
    )
    named = {"policy": policy, "version": version, "holder": holder}
    return connection.execute(statement, named).one_or_none() is not None


def _use(connection: Connection, policy: str, rules: Rules) -> Use:
    named = {"policy": policy}
    uploaded: frozenset[int] = frozenset()
    if rules.upload_url:
        uploaded = frozenset(connection.execute(_UPLOADED, named | {"url": rules.upload_url}).scalars())
    return Use(
        served={row.version: row.servers for row in connection.execute(_SERVED, named)},
        pinned={row.version: row.holders for row in connection.execute(_PINNED, named)},
        uploaded=uploaded,
    )
