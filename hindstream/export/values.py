"""One row's values in JSON lines and in Parquet, there and back. What goes in comes out equal, NaN too."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from hindstream.export.layout import ColumnSpec, Kind, TableSpec

Row = dict[str, Any]
"""Column -> value: str, int, float, bool, bytes, datetime with its zone, dict of texts for `map`, and for `json` the
text of the JSON, which is what the database and the log have; None for NULL."""

_ARROW: dict[Kind, pa.DataType] = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "json": pa.string(),
    "map": pa.map_(pa.string(), pa.string()),
}
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_encoder = msgspec.json.Encoder()


def arrow_schema(spec: TableSpec) -> pa.Schema:
    """The Parquet schema; comments and kinds go along as metadata of the fields."""
    return pa.schema(
        [
            pa.field(c.name, _ARROW[c.kind], c.nullable, metadata={"kind": c.kind, "comment": c.comment})
            for c in spec.columns
        ]
    )


def json_line(spec: TableSpec, row: Row) -> bytes:
    """The row as one line, without its end."""
    return _encoder.encode({c.name: _to_json(c, row[c.name]) for c in spec.columns})


def from_json(spec: TableSpec, fields: Mapping[str, msgspec.Raw]) -> Row:
    """The row of a line that was parsed into undecoded fields.

    Raises:
        ValueError: a field is missing or is not what its kind says.
    """
    missing = {c.name for c in spec.columns} - set(fields)
    if missing:
        raise ValueError(f"there is no field {', '.join(sorted(missing))}")
    return {c.name: _from_json(c, fields[c.name]) for c in spec.columns}


def from_arrow(spec: TableSpec, row: Row) -> Row:
    """The row of a Parquet row."""
    return {column.name: _from_arrow(column, row[column.name]) for column in spec.columns}


def iso(moment: datetime) -> str:
    """ISO 8601, UTC, with microseconds and `Z`."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _to_json(column: ColumnSpec, value: Any) -> Any:
    if value is None:
        return None
    if column.kind == "binary":
        return base64.b64encode(value).decode("ascii")
    if column.kind == "timestamp":
        return iso(value)
    if column.kind == "json":
        return msgspec.Raw(value.encode("utf-8"))
    if column.kind == "float64" and not math.isfinite(value):
        return next(text for text, special in _SPECIAL.items() if special == value or value != value)
    return value


def _from_json(column: ColumnSpec, raw: msgspec.Raw) -> Any:
    if column.kind == "json":
        text = bytes(raw).decode("utf-8")
        return None if text == "null" and column.nullable else text
    value = msgspec.json.decode(raw)
    if value is None:
        return None
    if column.kind == "binary":
        return base64.b64decode(value, validate=True)
    if column.kind == "timestamp":
        return datetime.fromisoformat(value)
    if column.kind == "float64":
        return _SPECIAL[value] if isinstance(value, str) else float(value)
    return value


def _from_arrow(column: ColumnSpec, value: Any) -> Any:
    if value is not None and column.kind == "map":
        return dict(value)
    return value.astimezone(UTC) if value is not None and column.kind == "timestamp" else value
