"""Hindstream's own archive as Parquet (`hindstream export --format parquet`): one event of the log a row.

As `producers.importers.hindstream_jsonl`, with the attributes as columns and the data as their JSON text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.base import RefusedRow, Row
from producers.importers.detect import Head
from producers.importers.hindstream_jsonl import COMPANIONS, SOURCE
from producers.importers.json_scan import excerpt_of
from producers.importers.open_files import open_log
from schemas.envelope import MalformedEvent
from schemas.structured import event_of

__all__ = ["COMPANIONS", "NAME", "SOURCE", "read", "sniff"]

NAME = "hindstream-parquet"

_MAGIC = b"PAR1"
_ROWS = 256
"""Rows in memory at once: an event is seldom over 1 MiB."""


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: Parquet. Its columns stand at the end of the file; one of other
    rows is refused with what it lacks."""
    return head.data.startswith(_MAGIC)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line is the row's number, from 1."""
    import pyarrow as pa  # half a second to import, so only where a Parquet file is read
    import pyarrow.parquet as pq

    number = 0
    with open_log(path) as source:
        try:
            file = pq.ParquetFile(source)
            missing = {"id", "source", "type", "data", "data_binary", "attributes"} - set(file.schema_arrow.names)
            if missing:
                why = f"not an archive of events: there is no column {', '.join(sorted(missing))}"
                yield RefusedRow(path.name, 1, why, "")
                return
            for batch in file.iter_batches(batch_size=_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield _row(path.name, number, row)
        except (pa.ArrowException, OSError) as err:
            yield RefusedRow(path.name, number + 1, f"the Parquet file is damaged or breaks off: {err}", "")


def _row(file: str, number: int, row: dict[str, Any]) -> Row:
    text, binary = row["data"], row["data_binary"]
    value = binary if text is None else text.encode("utf-8")
    if value is None:
        return RefusedRow(file, number, "there is neither `data` nor `data_binary`", "")
    attributes = {name: row.get(name) for name in ("id", "source", "type", "time", "subject", "partitionkey")}
    attributes |= {name: row.get(name) for name in ("causationid", "recordedtime")}
    try:
        return event_of({**dict(row["attributes"] or ()), **attributes}, value)
    except MalformedEvent as err:
        return RefusedRow(file, number, str(err), excerpt_of(value[:200].decode("utf-8", errors="replace"))[1:-1])
