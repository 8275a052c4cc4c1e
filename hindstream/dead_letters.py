"""Dead letters as people look at them: found by filters, and shown so that no byte of theirs steers a terminal."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from hindstream.errors import UserError
from processors.letters import LetterPolicy

_SHOWN_BYTES = 256
"""Of a value: sixteen lines, enough to see what it is."""
_A_LINE = 16
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which letters; None: any."""

    topic: str | None = None
    error: str | None = None
    since: datetime | None = None
    state: str | None = None


_WHERE = """
FROM dead_letters
WHERE (%(topic)s::text IS NULL OR topic = %(topic)s) AND (%(error)s::text IS NULL OR error_class = %(error)s)
  AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s) AND (%(state)s::text IS NULL OR state = %(state)s)
"""
_COLUMNS = """
dead_letter_id, topic, partition, record_offset, error_class, error_message, state, state_changed_at, state_changed_by,
reason, replay_of, replays, replayed_partition, replayed_offset, created_at, length(value) AS bytes
"""


def find(connection: Connection, wanted: Filter, limit: int | None) -> tuple[Sequence[Any], int]:
    """The newest `limit` letters, newest first, without their values; and how many there are."""
    values = {**vars(wanted), "limit": limit}
    rows = connection.exec_driver_sql(
        f"SELECT {_COLUMNS} {_WHERE} ORDER BY dead_letter_id DESC LIMIT %(limit)s", values
    ).all()
    return rows, connection.exec_driver_sql(f"SELECT count(*) {_WHERE}", values).scalar_one()


def moment(said: str | None) -> datetime | None:
    """The moment that is `30m`, `12h` or `7d` ago, or a time in ISO 8601; without an offset UTC.

    Raises:
        UserError: it is neither.
    """
    if said is None:
        return None
    try:
        if (span := re.fullmatch(r"(\d{1,6})([mhd])", said)) is not None:
            return datetime.now(UTC) - int(span[1]) * _UNITS[span[2]]
        at = datetime.fromisoformat(said)
    except (ValueError, OverflowError):
        raise UserError(f"--since: {said!r} is no time; say 30m, 12h, 7d or 2027-01-31T00:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def show(connection: Connection, number: int) -> Any | None:
    """One letter with everything; None where there is none."""
    return connection.exec_driver_sql(
        f"SELECT {_COLUMNS}, key, headers, value, "
        "(SELECT array_agg(later.dead_letter_id ORDER BY 1) FROM dead_letters later "
        " WHERE later.replay_of = dead_letters.dead_letter_id) AS failed_again "
        "FROM dead_letters WHERE dead_letter_id = %(number)s",
        {"number": number},
    ).one_or_none()


def as_json(row: Any) -> dict[str, Any]:
    """A row of `find` as JSON has it."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row._mapping.items()}


def describe(row: Any, policy: LetterPolicy) -> str:
    """A row of `show` in words."""
    lines = [
        f"dead letter {row.dead_letter_id}, {row.state}",
        f"record    {row.topic}/{row.partition} at offset {row.record_offset}",
        f"kept      {row.created_at:%Y-%m-%d %H:%M:%S%z}",
        f"error     {printable(row.error_class, 100)}: {printable(row.error_message, 2000)}",
        f"policy    {policy.action(row.error_class)}; replayed {row.replays} of at most {policy.max_replays} times",
    ]
    if row.replay_of is not None:
        lines.append(f"replay of {row.replay_of}")
    if row.state != "open":
        lines.append(
            f"{row.state:<9} {row.state_changed_at:%Y-%m-%d %H:%M:%S%z} by {printable(row.state_changed_by, 100)}"
        )
    if row.reason is not None:
        lines.append(f"reason    {printable(row.reason, 2000)}")
    if row.replayed_offset is not None:
        again = f", and failed again as {', '.join(map(str, row.failed_again))}" if row.failed_again else ""
        lines.append(f"went to   {row.topic}/{row.replayed_partition} at offset {row.replayed_offset}{again}")
    lines.append(f"key       {_short(row.key)}")
    lines.append("headers")
    lines += [f"  {printable(name, 100)}: {_short(base64.b64decode(value))}" for name, value in row.headers]
    if row.value is None:
        return "\n".join([*lines, "no value"])
    value = bytes(row.value)
    lines.append(f"value     {len(value):,} bytes, {_kind(value)}; `--raw` for all of it")
    lines += hexdump(value[:_SHOWN_BYTES])
    if len(value) > _SHOWN_BYTES:
        lines.append(f"  … {len(value) - _SHOWN_BYTES:,} more")
    return "\n".join(lines)


def hexdump(data: bytes) -> list[str]:
    """Lines of an offset, up to sixteen bytes as hexadecimal numbers, and those that are printable ASCII."""
    lines = []
    for first in range(0, len(data), _A_LINE):
        part = data[first : first + _A_LINE]
        numbers = " ".join(f"{byte:02x}" for byte in part)
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"  {first:06x}  {numbers:<{3 * _A_LINE - 1}}  {text}")
    return lines


def printable(text: str | None, most: int | None) -> str:
    """`text` with what is not printable written as an escape, cut after `most` characters."""
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text or "–"
    )
    return shown if most is None or len(shown) <= most else shown[: most - 1] + "…"


def _short(data: bytes | None) -> str:
    """Bytes on one line: as text where they are printable UTF-8."""
    if data is None:
        return "none"
    try:
        return printable(bytes(data).decode("utf-8"), 200)
    except UnicodeDecodeError:
        return f"0x{bytes(data[:100]).hex()}{'…' if len(data) > 100 else ''}"


def _kind(value: bytes) -> str:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as err:
        return f"not UTF-8 from byte {err.start} on"
    return "UTF-8"
