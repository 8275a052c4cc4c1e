"""Metadata with a naming convention, and the column types that every table shares."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import CheckConstraint, DateTime, MetaData, func
from sqlalchemy.schema import Column

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def one_of(column: str, values: Iterable[str]) -> CheckConstraint:
    """A CHECK that `column` is one of `values`; NULL passes, as in SQL. Cheaper to widen than an enum type."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def timestamp(name: str, comment: str, *, nullable: bool = True) -> Column[object]:
    """A `timestamptz` column."""
    return Column(name, DateTime(timezone=True), nullable=nullable, comment=comment)


def created_at(*, precise: bool = False) -> Column[object]:
    """The database's own time of the insert: its transaction's start, or the statement's where `precise`.

    The precise one is for rows that a run counts from its own start on: `processors.runs` inserts a run under a
    lock that no insert of such a row crosses, so the two times order them.
    """
    return Column(
        "created_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.clock_timestamp() if precise else func.now(),
        comment="When this row was inserted (database clock).",
    )
