"""Retention deletes what nobody needs, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from learner.checkpoints import version_dir, write_version
from learner.commit import add_version
from learner.config import no_fault
from learner.manifest import Lineage, has_weights
from learner.retention import Rules, Use, apply_rules, hold, pin, reasons, rules_of, unpin
from tests.learner.learning import Learning

NOBODY = Use(served={}, pinned={}, uploaded=frozenset())


def manifests(*bases: int | None) -> dict[int, dict[str, Any]]:
    """Versions from 0 on; None for a full one, else a delta of that base."""
    return {
        version: {} if base is None else {"kind": "delta", "base": {"version": base}}
        for version, base in enumerate(bases)
    }


def kept(found: dict[int, list[str]]) -> list[int]:
    return [version for version, why in found.items() if why]


@pytest.mark.parametrize(
    ("rules", "use", "versions"),
    [
        (Rules(keep_last=2), NOBODY, [0, 8, 9]),
        (Rules(keep_last=1), NOBODY, [0, 8, 9]),  # a server may still be reading the one before
        (Rules(keep_last=4), NOBODY, [0, 6, 7, 8, 9]),
        (Rules(keep_last=2, keep_every=3), NOBODY, [0, 3, 6, 8, 9]),
        (Rules(keep_last=2), Use({4: "http://a"}, {}, frozenset()), [0, 4, 8, 9]),
        (Rules(keep_last=2), Use({}, {1: "user", 7: "teacher"}, frozenset()), [0, 1, 7, 8, 9]),
        (Rules(keep_last=2, upload_url="s3://b"), Use({}, {}, frozenset({0, 1, 2, 3, 5, 6})), [0, 4, 7, 8, 9]),
        (Rules(keep_last=2), Use({}, {}, frozenset({3})), [0, 8, 9]),  # nowhere to copy to: no copy is waited for
    ],
)
def test_each_rule_keeps_its_versions(rules: Rules, use: Use, versions: list[int]) -> None:
    assert kept(reasons(manifests(*[None] * 10), rules, use)) == versions


def test_bases_of_what_is_kept_are_kept_and_no_others() -> None:
    versions = manifests(None, 0, None, 2, 2, None, 5, 5, 5)
    found = reasons(versions, Rules(keep_last=2), NOBODY)
    assert kept(found) == [0, 5, 7, 8]
    assert found[5] == ["base of version 8", "base of version 7"]
    found = reasons(versions, Rules(keep_last=2), Use({3: "a"}, {}, frozenset()))
    assert kept(found) == [0, 2, 3, 5, 7, 8]
    chain = manifests(None, 0, 1, 2, None, None)
    assert kept(reasons(chain, Rules(keep_last=2), Use({3: "a"}, {}, frozenset()))) == [0, 1, 2, 3, 4, 5]


def test_the_base_of_the_next_delta_stays() -> None:
    versions = manifests(None, None, None, 0, 0)  # as after adapters or an old base that was pinned
    assert kept(reasons(versions, Rules(keep_last=2), NOBODY)) == [0, 3, 4]
    assert kept(reasons(versions, Rules(keep_last=2, deltas=True), NOBODY)) == [0, 2, 3, 4]


@pytest.fixture
def versions(learning: Learning) -> Learning:
    """Seven versions of a policy, each a small file."""

    def fill(directory: Path) -> None:
        for name in ("model.safetensors", "config.json"):
            (directory / name).write_text(directory.name)

    for version in range(7):
        target = version_dir(learning.directory / "weights", "p", version)
        manifest = write_version(target, Lineage(policy="p", version=version), fill, fault=no_fault)
        with learning.engine.begin() as connection:
            add_version(connection, "p", version, str(target), manifest)
    return learning


def on_disk(learning: Learning) -> list[int]:
    return [v for v in range(7) if has_weights(version_dir(learning.directory / "weights", "p", v))]


def prune(learning: Learning, connection: Connection | None = None, **more: Any) -> list[int]:
    rules = more.pop("rules", Rules(keep_last=2))
    if connection is not None:
        return apply_rules(connection, learning.directory / "weights", "p", rules, **more).gone
    with learning.engine.begin() as own:
        return apply_rules(own, learning.directory / "weights", "p", rules, **more).gone


@pytest.mark.stack
def test_a_dry_run_says_what_would_go_and_deletes_nothing(versions: Learning) -> None:
    with versions.engine.begin() as connection:
        pin(connection, "p", 3, "user")
        found = apply_rules(connection, versions.directory / "weights", "p", Rules(keep_last=2), dry_run=True)
    assert found.gone == [1, 2, 4]
    assert found.kept == {
        0: ["the base model"],
        3: ["pinned by user"],
        5: ["one of the newest 2"],
        6: ["one of the newest 2"],
    }
    assert on_disk(versions) == list(range(7))
    assert prune(versions) == [1, 2, 4]
    assert prune(versions) == []
    assert on_disk(versions) == [0, 3, 5, 6]


@pytest.mark.stack
def test_a_pin_is_held_by_name_until_the_last_is_gone(versions: Learning) -> None:
    with versions.engine.begin() as connection:
        assert [pin(connection, "p", 2, who) for who in ("user", "eval", "user")] == [True, True, False]
    for who, gone in (("user", []), ("nobody", []), ("eval", [2])):
        with versions.engine.begin() as connection:
            assert unpin(connection, "p", 2, who) == (who != "nobody")
        assert [v for v in prune(versions) if v == 2] == gone
    with versions.engine.connect() as connection, pytest.raises(LookupError, match="no version 9"):
        pin(connection, "p", 9, "user")


@pytest.mark.stack
def test_what_a_server_is_loading_stays_until_it_is_served(versions: Learning) -> None:
    """The loader's lock keeps it before there is a row that says so; a loader that died keeps nothing."""
    with versions.engine.begin() as loader:
        hold(loader, "p", 2, 1, 2)
        assert prune(versions) == [3, 4]
        loader.exec_driver_sql(
            "INSERT INTO weight_loads (server, policy, version, attempt, status, seconds) "
            "VALUES ('a', 'p', 2, 1, 'serving', 1)"
        )
    assert prune(versions) == [1]
    assert on_disk(versions) == [0, 2, 5, 6]


@pytest.mark.stack
def test_who_comes_while_files_are_deleted_waits_and_learns_that_they_are_gone(versions: Learning) -> None:
    seen: list[bool] = []

    def load() -> None:
        with versions.engine.begin() as connection:
            hold(connection, "p", 1)
            seen.append(has_weights(version_dir(versions.directory / "weights", "p", 1)))

    with versions.engine.begin() as connection:
        assert prune(versions, connection) == [1, 2, 3, 4]
        loader = threading.Thread(target=load)
        loader.start()
        loader.join(0.3)
        assert seen == []
    loader.join(10)
    assert seen == [False]


@pytest.mark.stack
def test_a_pin_that_comes_during_the_look_is_seen(versions: Learning, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first look and the locks: the second look decides."""
    from learner import retention

    real: Callable[..., Use] = retention._use
    looks: list[int] = []

    def slow(connection: Connection, policy: str, rules: Rules) -> Use:
        found = real(connection, policy, rules)
        if not looks:
            with versions.engine.begin() as other:
                pin(other, "p", 4, "user")
        looks.append(1)
        return found

    monkeypatch.setattr(retention, "_use", slow)
    assert prune(versions) == [1, 2, 3]
    assert on_disk(versions) == [0, 4, 5, 6]


@pytest.mark.stack
def test_without_a_copy_nothing_goes(versions: Learning) -> None:
    rules = rules_of(versions.config(keep_last=2, upload_url="s3://bucket/w"))
    assert prune(versions, rules=rules) == []
    for version, status in ((1, "uploaded"), (2, "failed")):
        versions.execute(
            "INSERT INTO weight_uploads (policy, version, url, status, attempts, bytes, seconds, uploaded_at) VALUES "
            "('p', :version, 's3://bucket/w', :status, 1, 1, 1, CASE WHEN :status = 'uploaded' THEN now() END)",
            version=version,
            status=status,
        )
    assert prune(versions, rules=rules) == [1]
    elsewhere = rules_of(versions.config(keep_last=2, upload_url="s3://another"))
    assert prune(versions, rules=elsewhere) == []


@pytest.mark.stack
def test_a_deletion_that_a_crash_stopped_is_finished(versions: Learning) -> None:
    def dies(point: str) -> None:
        raise KeyboardInterrupt(point)

    with pytest.raises(KeyboardInterrupt):
        prune(versions, fault=dies)
    assert on_disk(versions) == [0, 2, 3, 4, 5, 6]
    with versions.engine.begin() as connection:  # even if somebody wants it now: it is half gone
        pin(connection, "p", 1, "user")
    assert prune(versions) == [2, 3, 4]
    left = version_dir(versions.directory / "weights", "p", 1).iterdir()
    assert [path.name for path in left] == ["manifest.json"]
