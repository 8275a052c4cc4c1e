"""Examples as one file: JSON lines, or Parquet that HuggingFace's `datasets` loads with the same types."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hindstream.errors import UserError
from hindstream.export.examples import Example, Kind

_MESSAGES = {"sft": ("prompt", "completion"), "kto": ("prompt", "completion"), "dpo": ("prompt", "chosen", "rejected")}
_MADE_BY = ("policy", "run", "recipe_digest")
_OF_TURN = ("tools", "turn_id", "session_id", "annotator_kind", *_MADE_BY)
_OF_PAIR = ("tools", "pair", "session_id", "chosen_turn_id", "rejected_turn_id", "feedback_id", "author", *_MADE_BY)
_TEXTS = {"sft": _OF_TURN, "kto": _OF_TURN, "dpo": _OF_PAIR}
_NUMBERS = {"sft": ("reward",), "kto": ("reward",), "dpo": ("chosen_reward", "rejected_reward")}
_ROWS = 1024
"""Examples of one row group; a prompt may be a megabyte."""


def write_data_set(path: Path, kind: Kind, examples: Iterable[Example]) -> int:
    """Write the examples to a `.jsonl` or `.parquet` file; returns how many there are. The file is whole or not
    there; without examples it is not there.

    Raises:
        UserError: the name ends otherwise, the file exists, or it cannot be written.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(f"{path}: name a file that ends in .jsonl or .parquet")
    if path.exists():
        raise UserError(f"{path} exists; choose another name, or remove it")
    partial = path.with_name(path.name + ".partial")
    try:
        file: _File = _Lines(partial) if path.suffix == ".jsonl" else _Parquet(partial, kind)
    except OSError as err:
        raise UserError(f"{path}: cannot be written ({err.strerror})") from None
    count = 0
    try:
        for example in examples:
            file.write(example)
            count += 1
        file.close()
        if count:
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


class _File(Protocol):
    def write(self, example: Example) -> None: ...

    def close(self) -> None: ...


class _Lines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, example: Example) -> None:
        self._file.write(msgspec.json.encode(example) + b"\n")

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, kind: Kind) -> None:
        self._messages = _MESSAGES[kind]
        self._schema = _schema(kind)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Example] = []

    def write(self, example: Example) -> None:
        texts = {name: [msgspec.json.encode(one).decode("utf-8") for one in example[name]] for name in self._messages}
        self._rows.append(example | texts)
        if len(self._rows) >= _ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        arrays = [_array([row[field.name] for row in self._rows], field.type) for field in self._schema]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows = []


def _array(values: list[Any], of: pa.DataType) -> pa.Array:
    if not pa.types.is_list(of):
        return pa.array(values, type=of)
    plain = pa.array(values, type=pa.list_(pa.string()))
    inner = pa.ExtensionArray.from_storage(of.value_type, plain.values)
    return pa.ListArray.from_arrays(plain.offsets, inner, type=of)


def _schema(kind: Kind) -> pa.Schema:
    """Messages are lists of JSON, since no two need have the same fields; the metadata tell `datasets` so."""
    columns: dict[str, tuple[pa.DataType, dict[str, Any]]] = {
        name: (pa.list_(pa.json_(pa.string())), {"feature": {"_type": "Json"}, "_type": "List"})
        for name in _MESSAGES[kind]
    }
    plain = [(name, pa.string()) for name in _TEXTS[kind]] + [(name, pa.float64()) for name in _NUMBERS[kind]]
    plain.append(("policy_version", pa.int32()))
    if kind == "kto":
        plain.append(("label", pa.bool_()))
    names = {pa.string(): "string", pa.float64(): "float64", pa.int32(): "int32", pa.bool_(): "bool"}
    columns |= {name: (type_, {"dtype": names[type_], "_type": "Value"}) for name, type_ in plain}
    features = {name: feature for name, (_, feature) in columns.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([pa.field(name, type_) for name, (type_, _) in columns.items()], metadata=metadata)
