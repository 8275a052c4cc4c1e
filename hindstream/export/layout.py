"""What an archive's tables look like: columns with their kinds, the same for JSON lines and Parquet.

| kind | in JSON lines | in Parquet |
|---|---|---|
| string, int32, int64, bool | as JSON has it | the type of that name |
| float64 | a number; "NaN", "Infinity", "-Infinity" as text | double |
| timestamp | ISO 8601 text, UTC, microseconds | timestamp[us, UTC] |
| binary | base64 text | binary |
| json | nested JSON | its text |
| map | an object of texts | map<string, string> |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import BigInteger, Boolean, DateTime, Double, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from schemas.tables import metadata

Kind = Literal["string", "int32", "int64", "float64", "bool", "timestamp", "binary", "json", "map"]
Format = Literal["jsonl", "parquet"]

SUFFIX: dict[Format, str] = {"jsonl": ".jsonl.zst", "parquet": ".parquet"}

_KINDS: list[tuple[type[TypeEngine[Any]], Kind]] = [
    (BigInteger, "int64"),
    (SmallInteger, "int32"),
    (Integer, "int32"),
    (Double, "float64"),
    (Boolean, "bool"),
    (DateTime, "timestamp"),
    (LargeBinary, "binary"),
    (JSONB, "json"),
    (Text, "string"),
]
"""The first that fits: a BigInteger is an Integer too."""

_FACTS = {"events", "sessions", "turns", "next_states", "turn_completions", "feedback"}
_DELIVERY = {"outbox", "dead_letters"}
_NOW = {"open_questions"}
"""Of this moment, and of no use later."""
_ACCESS = {"tenants", "gateway_keys"}
"""Of one installation, and nobody else's: no archive holds them."""


@dataclass(frozen=True)
class ColumnSpec:
    """One column of an archive."""

    name: str
    kind: Kind
    nullable: bool
    comment: str


@dataclass(frozen=True)
class TableSpec:
    """One table of an archive. `directory` is relative to the archive; below it, `date=YYYY-MM-DD/part-NNNNN`.
    `dated_by` names the column whose UTC date that is; where there is none, the part is `date=none`."""

    name: str
    directory: str
    columns: tuple[ColumnSpec, ...]
    dated_by: str | None
    comment: str


def _texts(*names_and_comments: tuple[str, str, bool]) -> tuple[ColumnSpec, ...]:
    return tuple(ColumnSpec(name, "string", nullable, comment) for name, comment, nullable in names_and_comments)


_PLACE = (
    ColumnSpec("logtopic", "string", False, "Topic."),
    ColumnSpec("logpartition", "int32", False, "Partition of the topic."),
    ColumnSpec("logoffset", "int64", False, "Offset in the partition."),
    ColumnSpec("logtime", "timestamp", False, "When the log got it."),
)

EVENTS = TableSpec(
    "events",
    "events",
    (
        *_texts(
            ("id", "ce_id: unique within its source.", False),
            ("source", "ce_source: who wrote the event.", False),
            ("type", "ce_type, with its version.", False),
            ("time", "The source's clock, ISO 8601 as given.", True),
            ("recordedtime", "The clock of who put it on the log first.", True),
            ("subject", "ce_subject.", True),
            ("partitionkey", "The session.", True),
            ("causationid", "The event that caused it.", True),
        ),
        ColumnSpec("attributes", "map", True, "Further attributes (ce_ headers); in JSON lines beside the others."),
        ColumnSpec("data", "string", True, "The data, JSON exactly as on the log; in JSON lines nested."),
        ColumnSpec("data_binary", "binary", True, "The same where they are no strict JSON (`data_base64`)."),
        *_PLACE,
    ),
    "logtime",
    "The log of facts: every record of the range that is an event, repeats and conflicts too, in the order of the log.",
)

UNREADABLE = TableSpec(
    "unreadable",
    "unreadable",
    (
        ColumnSpec("key", "binary", True, "Key as it came."),
        ColumnSpec("headers", "json", False, "[[name, base64]] as they came."),
        ColumnSpec("value", "binary", True, "Value as it came."),
        ColumnSpec("error", "string", False, "Why it is no event."),
        *_PLACE,
    ),
    "logtime",
    "Records of the log that are no events; they are dead letters in the database too.",
)


def sql_spec(table: Table) -> TableSpec:
    """The archive's table of a table of the database."""
    columns = tuple(
        ColumnSpec(column.name, _kind(column.type), bool(column.nullable), column.comment or "")
        for column in table.columns
    )
    dated_by = "created_at" if "created_at" in table.columns else None
    return TableSpec(table.name, f"derived/{table.name}", columns, dated_by, table.comment or "")


def derived_tables() -> list[Table]:
    """The tables of what was derived from facts, those that others refer to first."""
    return [table for table in metadata.sorted_tables if table.name not in _FACTS | _DELIVERY | _NOW | _ACCESS]


def _kind(of: TypeEngine[Any]) -> Kind:
    return next(kind for type_, kind in _KINDS if isinstance(of, type_))


def describe(specs: list[TableSpec], format_: Format) -> dict[str, Any]:
    """The archive's schema document."""
    return {
        "format": format_,
        "kinds": (__doc__ or "").partition("\n\n")[2].splitlines(),
        "tables": {
            spec.name: {
                "directory": spec.directory,
                "partitioned_by": "date",
                "date_of": spec.dated_by,
                "comment": spec.comment,
                "columns": [
                    {"name": c.name, "kind": c.kind, "nullable": c.nullable, "comment": c.comment} for c in spec.columns
                ],
            }
            for spec in specs
        },
    }


def specs_of(document: dict[str, Any]) -> dict[str, TableSpec]:
    """The tables that a schema document describes.

    Raises:
        KeyError, TypeError: it is no such document.
    """
    return {
        name: TableSpec(
            name,
            table["directory"],
            tuple(ColumnSpec(c["name"], c["kind"], c["nullable"], c["comment"]) for c in table["columns"]),
            table["date_of"],
            table["comment"],
        )
        for name, table in document["tables"].items()
    }
