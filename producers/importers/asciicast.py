"""Terminal recordings of asciinema: asciicast v2 and v3, a header line and then rows [time, code, data].

- Session: a recording. Turn: what was typed (`i` rows) up to and with Enter, raw, control keys and all; at the end of
  the recording also what no Enter ended. `stop` where Enter or output followed it, else `aborted`.
- Next state: all output (`o` rows) from the first key of a turn to the first key of the next, echo included: one
  `terminal_output`. A turn without output has none.
- The request: the terminal so far, output as `user` messages and keys as `assistant` messages, at most the latest
  32,768 characters: a recording of hours would otherwise be kept whole in each of its turns.
- Rows `m` (markers), `r` (resizes), `x` (the recorded shell's exit status, which says nothing of a single command) and
  comments are not read. Time is read into `started_at`, `ended_at` and `observed_at` where the header has a
  timestamp; v2 counts from the start, v3 from the row before. Order is the rows' own.

A recording without `i` rows (asciinema keeps them only where it is asked to) has no turns, and is refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from producers.importers.base import UNKNOWN_POLICY, RefusedRow, Row, SessionDraft, Unreadable, session_id_of
from producers.importers.detect import Head
from producers.importers.json_scan import Broken, Item, excerpt_of, json_type
from producers.importers.jsonl import BrokenLine, rows_of
from schemas.events import Response

NAME = "asciicast"
SOURCE = "hindstream/import/asciicast"

CONTEXT_CHARS = 1 << 15
"""Characters of the terminal that a turn's request holds at most: about 400 full lines of 80, or 8k tokens."""

_KEYS = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_IGNORED = frozenset({"m", "r", "x"})


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    return isinstance(head.value, dict) and _version(head.value) is not None and "log" not in head.value


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. A turn's line is that of its first key, an output's its first."""
    rows: list[tuple[int, float, str, str]] = []
    header: dict[str, Any] | None = None
    last = 1
    for item in rows_of(path):
        last = item.line
        if isinstance(item, BrokenLine) and item.text.lstrip().startswith("#"):
            continue
        try:
            if isinstance(item, Broken):
                raise Unreadable(item.reason)
            if isinstance(item.value, dict):
                if header is not None:
                    raise Unreadable("a second header: a file holds one recording")
                if _version(item.value) is None:
                    raise Unreadable(f"version {item.value.get('version')!r} is neither 2 nor 3")
                header = item.value
            else:
                rows.append((item.line, *_row(item)))
        except Unreadable as err:
            excerpt = item.excerpt if isinstance(item, Broken) else excerpt_of(item.value)
            yield RefusedRow(path.name, item.line, str(err), excerpt)
    if not any(code == "i" for _, _, code, _ in rows):
        reason = "the recording has no keys (`i` rows), so there is no turn: record with asciinema's option for input"
        yield RefusedRow(path.name, 1, reason, "")
        return
    try:
        session_id = session_id_of(SOURCE, [header, [row[1:] for row in rows]])
    except Unreadable as err:
        yield RefusedRow(path.name, 1, str(err), "")
        return
    draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    _Terminal(draft, _clock(header, rows)).read(rows)
    yield from draft.events(last)


class _Terminal:
    """The rows of a recording, taken one by one."""

    def __init__(self, draft: SessionDraft, clock: list[str | None]) -> None:
        self.draft, self.clock = draft, clock
        self.shown: list[dict[str, Any]] = []
        self.typed: list[str] = []
        self.output: list[str] = []
        """Since the first key of `turn` or of what is being typed."""
        self.turn: int | None = None
        self.typed_at = self.output_at = (1, 0)
        """Line of the first key that is being typed, of the first output, each with its row."""

    def read(self, rows: list[tuple[int, float, str, str]]) -> None:
        for index, (line, _, code, data) in enumerate(rows):
            if code == "o":
                self._output(data, (line, index))
            elif code == "i":
                for keys in filter(None, _KEYS.findall(data)):
                    self._keys(keys, (line, index))
        if self.typed:
            self._end_turn(len(rows) - 1, "stop" if self.output else "aborted")
        self._flush()

    def _output(self, data: str, at: tuple[int, int]) -> None:
        if data:
            self.output_at = self.output_at if self.output else at
            self.output.append(data)

    def _keys(self, keys: str, at: tuple[int, int]) -> None:
        if not self.typed:
            self._flush()
            self.typed_at = at
        self.typed.append(keys)
        if keys[-1] in "\r\n":
            self._end_turn(at[1], "stop")

    def _flush(self) -> None:
        """What was output since the first key of the latest turn is its next state."""
        if not self.output:
            return
        text = "".join(self.output)
        if self.turn is not None:
            self.draft.add_next_state(
                self.turn,
                "terminal_output",
                line=self.output_at[0],
                content=text,
                observed_at=self.clock[self.output_at[1]],
            )
        self.shown.append({"role": "user", "content": text})
        self.output = []

    def _end_turn(self, row: int, how: Any) -> None:
        text = "".join(self.typed)
        self.turn = self.draft.add_turn(
            messages=_latest(self.shown),
            response=Response(content=text),
            finish_reason=how,
            policy=UNKNOWN_POLICY,
            line=self.typed_at[0],
            started_at=self.clock[self.typed_at[1]],
            ended_at=self.clock[row],
        )
        self.shown.append({"role": "assistant", "content": text})
        self.typed = []


def _latest(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The end of the terminal, at most `CONTEXT_CHARS` characters; the oldest message of it is cut at its front."""
    kept: list[dict[str, Any]] = []
    left = CONTEXT_CHARS
    for message in reversed(shown):
        if left <= 0:
            break
        text = message["content"][-left:]
        kept.append({"role": message["role"], "content": text})
        left -= len(text)
    return kept[::-1]


def _version(header: dict[str, Any]) -> int | None:
    version = header.get("version")
    if isinstance(version, bool) or not isinstance(version, (int, float)):
        return None
    mark = {2: "width", 3: "term"}.get(int(version)) if version in (2, 3) else None
    return int(version) if mark in header else None


def _row(item: Item) -> tuple[float, str, str]:
    row = item.value
    if not isinstance(row, list) or len(row) < 3:
        raise Unreadable(f"is a JSON {json_type(row)}, not a row [time, code, data]")
    time, code, data = row[:3]
    if not isinstance(code, str):
        raise Unreadable(f"the code is a JSON {json_type(code)}, not a string")
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise Unreadable(f"the time is a JSON {json_type(time)}, not a number")
    try:
        time = float(time)
    except OverflowError as err:
        raise Unreadable("the time is no number of seconds") from err
    if code in ("i", "o"):
        if not isinstance(data, str):
            raise Unreadable(f"the data of an {code!r} row are a JSON {json_type(data)}, not a string")
        return time, code, data
    if code not in _IGNORED:
        raise Unreadable(f"code {code!r} is none of i, o, m, r, x")
    return time, code, ""


def _clock(header: dict[str, Any] | None, rows: list[tuple[int, float, str, str]]) -> list[str | None]:
    """The time of each row, ISO 8601; None where it cannot be told."""
    start = header.get("timestamp") if header else None
    if isinstance(start, bool) or not isinstance(start, (int, float)):
        return [None] * len(rows)
    since_row_before = header is not None and _version(header) == 3
    passed, clock = 0.0, list[str | None]()
    for _, time, _, _ in rows:
        passed = passed + time if since_row_before else time
        clock.append(_iso(start, passed))
    return clock


def _iso(start: float, passed: float) -> str | None:
    try:
        return datetime.fromtimestamp(start + passed, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
