"""One version as an adapter beside others on the same server, for a teacher that a recipe pins."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text

from learner.errors import LearnerStopped
from learner.manifest import base_of
from learner.policy_server import PolicyServer
from learner.retention import pin
from learner.servable import Shelf
from learner.stored import stored_version
from schemas.adapter_names import version_name

_NEWEST_LOAD = text(
    "SELECT policy, version FROM weight_loads WHERE server = :server AND status = 'serving' "
    "ORDER BY created_at DESC LIMIT 1"
)


def load_beside(
    connection: Connection,
    *,
    weights_dir: Path,
    policy: str,
    version: int,
    url: str,
    model: str,
    api_key: str | None = None,
    timeout_s: float = 300.0,
) -> str:
    """Have the server at `url` serve `version` of `policy` under the name `MODEL@VERSION`, which is returned. What it
    serves otherwise, and its tag, stay; its base model must be the policy's version 0. Its files are pinned.

    Raises:
        LearnerStopped: the version is no adapter, its files are not whole, or the server was given other full weights.
        LookupError: there is no such version.
        ServerAway, ServerRefused: from the server.
    """
    name = version_name(model, version)
    shelf = Shelf(weights_dir / "none", weights_dir, policy, url)
    wanted = shelf.get(connection, version)
    if wanted.adapter is None:
        raise LearnerStopped(
            f"version {version} of {policy!r} is {wanted.version.kind}, and only an adapter can be served beside "
            "others: leave --beside out, and give it a server of its own"
        )
    if (loaded := _loaded(connection, url, weights_dir, policy)) not in (None, wanted.weights.version):
        raise LearnerStopped(
            f"{url} was given the full weights of version {loaded}, and version {version} is an adapter for those of "
            f"version {wanted.weights.version}: start the server again from that, or take another one"
        )
    if wrong := wanted.faults(shelf.get(connection, 0), None):
        raise LearnerStopped(f"version {version} of {policy!r}: {'; '.join(wrong)}")
    pin(connection, policy, version, f"server {url} as {name}")
    PolicyServer(url, name, timeout_s=timeout_s, api_key=api_key).load_adapter(wanted.adapter)
    return name


def _loaded(connection: Connection, url: str, weights_dir: Path, policy: str) -> int | None:
    """The version whose full weights were loaded last into the server; None where none were, as far as is known."""
    row = connection.execute(_NEWEST_LOAD, {"server": url}).one_or_none()
    if row is None:
        return None
    if row.policy != policy:
        raise LearnerStopped(f"{url} serves policy {row.policy!r}, not {policy!r}: take another server")
    found = stored_version(connection, weights_dir, policy, row.version)
    base = base_of(found.manifest)
    return row.version if found.kind != "adapter" or base is None else base
