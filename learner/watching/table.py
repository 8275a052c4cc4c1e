"""The definitions in Postgres, beside the rows that they explain: the view `step_metrics` joins them."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from learner.watching.definitions import DEFINITIONS
from schemas.tables import metric_definitions


def write_definitions(connection: Connection) -> None:
    """Have every definition in `metric_definitions` as this program knows it. One that it does not know stays: the rows
    of an older learner still need it."""
    # In one order, so that two learners that start together do not wait for each other's rows for ever.
    rows = sorted((asdict(one) for one in DEFINITIONS.values()), key=lambda row: str(row["name"]))
    statement = insert(metric_definitions).values(rows)
    changed = {name: statement.excluded[name] for name in ("unit", "heading", "help")}
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["name"],
            set_=changed,
            where=(metric_definitions.c.unit != changed["unit"])
            | (metric_definitions.c.heading != changed["heading"])
            | (metric_definitions.c.help != changed["help"]),
        )
    )
