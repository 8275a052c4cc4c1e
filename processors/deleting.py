"""Deleting a run: everything that it derived goes; the facts, the recorded answers of models and its name stay.

Its micro-batches are still on the log, so the name is never given to another run.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

DERIVED = (
    "teacher_scores",
    "hints",
    "rewards",
    "votes",
    "evaluations",
    "samples",
    "training_steps",
    "weight_versions",
    "micro_batches",
    "replays",
)
"""Tables with a column `run`, in an order in which no row goes before those that name it."""


class RunInUse(ValueError):
    """A run that must not be deleted: why, and what to do."""


@dataclass(frozen=True)
class Deleted:
    """Rows deleted by table, and the policies of which no weight version is left: their files may go."""

    rows: dict[str, int]
    policies: list[str]


def delete_run(connection: Connection, run: str) -> Deleted:
    """Delete what `run` derived, in the caller's transaction.

    Raises:
        LookupError: there is no such run.
        RunInUse: it is live and takes turns, or weight versions that it made are served, pinned, or what another run's
            versions were made from.
    """
    found = connection.exec_driver_sql(
        "SELECT kind, ended_at FROM runs WHERE run = %(run)s AND deleted_at IS NULL FOR UPDATE", {"run": run}
    ).one_or_none()
    if found is None:
        raise LookupError(run)
    if found.kind == "live" and found.ended_at is None:
        raise RunInUse(f"run {run!r} is live and takes turns; only a replay or a run that ended can be deleted")
    _refuse_used_weights(connection, run)
    announced = connection.exec_driver_sql(
        "DELETE FROM outbox WHERE sent_at IS NULL AND message_id IN "
        "(SELECT micro_batch_id FROM micro_batches WHERE run = %(run)s)",
        {"run": run},
    )
    rows = {"outbox": announced.rowcount}
    policies = _policies_without_others(connection, run)
    for table in ("weight_loads", "weight_uploads"):
        rows[table] = connection.exec_driver_sql(
            f"DELETE FROM {table} l USING weight_versions v "
            "WHERE (l.policy, l.version) = (v.policy, v.version) AND (v.run = %(run)s OR v.policy = ANY(%(policies)s))",
            {"run": run, "policies": policies},
        ).rowcount
    for table in DERIVED:
        rows[table] = connection.exec_driver_sql(f"DELETE FROM {table} WHERE run = %(run)s", {"run": run}).rowcount
    # Version 0 is no run's; it goes with the policy's last one.
    connection.exec_driver_sql("DELETE FROM weight_versions WHERE policy = ANY(%(policies)s)", {"policies": policies})
    connection.exec_driver_sql(
        "UPDATE runs SET deleted_at = now(), ended_at = coalesce(ended_at, now()) WHERE run = %(run)s", {"run": run}
    )
    return Deleted({table: count for table, count in rows.items() if count}, policies)


def _refuse_used_weights(connection: Connection, run: str) -> None:
    used = connection.exec_driver_sql(_USED, {"run": run}).all()
    if used:
        words = "; ".join(f"version {row.version} of {row.policy} {row.why}" for row in used[:5])
        raise RunInUse(f"run {run!r} made weights that are in use ({words}); it cannot be deleted")


_USED = """
SELECT v.policy, v.version, 'is served by ' || l.server AS why
FROM weight_versions v
JOIN (SELECT DISTINCT ON (server) server, policy, version FROM weight_loads WHERE status = 'serving'
      ORDER BY server, created_at DESC) l USING (policy, version)
WHERE v.run = %(run)s
UNION ALL
SELECT v.policy, v.version, 'is pinned' FROM weight_versions v JOIN weight_pins USING (policy, version)
WHERE v.run = %(run)s
UNION ALL
SELECT v.policy, v.version, 'is the parent of version ' || child.version || ' of run ' || child.run
FROM weight_versions v
JOIN weight_versions child ON child.policy = v.policy AND child.parent_version = v.version AND child.run <> v.run
WHERE v.run = %(run)s
ORDER BY 1, 2
"""


def _policies_without_others(connection: Connection, run: str) -> list[str]:
    found = connection.exec_driver_sql(
        """
        SELECT policy FROM runs r WHERE run = %(run)s
          AND NOT EXISTS (
              SELECT 1 FROM runs o WHERE o.policy = r.policy AND o.run <> r.run AND o.deleted_at IS NULL)
          AND NOT EXISTS (SELECT 1 FROM weight_versions v WHERE v.policy = r.policy AND v.run <> r.run)
        """,
        {"run": run},
    )
    return list(found.scalars())
