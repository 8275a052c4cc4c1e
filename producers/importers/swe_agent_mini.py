"""mini-SWE-agent trajectories: one JSON object a run with the list `messages`.

What is read, how turns and next states are made and what is refused: docs/importers/swe_agent_mini.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.answers import finish_reason_of, policy_of
from producers.importers.base import RefusedRow, Row, Unreadable, session_id_of
from producers.importers.codex_items import Pieces, is_answer, is_output, output_text
from producers.importers.content import content_text, text_field
from producers.importers.detect import Head
from producers.importers.json_scan import Broken, Field, Item, excerpt_of, read_text, scan_object
from producers.importers.jsonl import split_rows, values_of
from producers.importers.openai_messages import tool_calls_of
from producers.importers.place import Place
from producers.importers.transcript import Transcript
from schemas.events import FinishReason, NextStateKind, Response

NAME = "mini-swe-agent"
SOURCE = "hindstream/import/mini-swe-agent"

_MAX_SAMPLING = 100.0
"""No API takes a temperature beyond 2 or a top_p beyond 1: what is more is no setting but a broken file."""
_LISTS = frozenset({"messages"})
_STOPS: dict[str, FinishReason] = {"stop": "stop", "tool_calls": "tool_calls", "length": "length"}
_BY_PERSON = ("UserInterruption", "UserRejection", "UserNewTask")
"""What mini-SWE-agent notes beside words that a person typed."""
_PERSON_SAYS = ("Interrupted by user", "Commands not executed. The user rejected", "The user added a new task")
"""How such words begin in the first version, which noted nothing beside them."""


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: an object with `messages`, and the format's name or an `info` of
    mini-SWE-agent."""
    value = head.value
    if not isinstance(value, dict):
        return False
    named, info = value.get("trajectory_format"), value.get("info")
    ours = isinstance(named, str) and named.startswith("mini-swe-agent")
    ours = ours or (isinstance(info, dict) and "mini_version" in info)
    return ours and ("messages" in value or not head.whole)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn is that of its message."""
    scanned = scan_object(read_text(path), _LISTS)
    yield from (RefusedRow(path.name, row.line, row.reason, row.excerpt) for row in scanned.broken)
    found = scanned.fields.get("messages")
    if found is None or found.items is None:
        if not scanned.broken or scanned.fields:
            yield RefusedRow(path.name, 1, "the file has no list `messages`, so there is no turn", "")
        return
    rows, refused = split_rows(path.name, found.items)
    try:
        content = {name: field.readable() for name, field in scanned.fields.items()}
        session_id = session_id_of(SOURCE, content | {"messages": values_of(rows)})
    except Unreadable as err:
        yield RefusedRow(path.name, 1, f"the file cannot be imported: {err}", "")
        return
    transcript = Transcript(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    refused += _Run(rows, transcript, path.name, scanned.fields.get("info")).take()
    if not transcript.turns and not refused:
        refused = [RefusedRow(path.name, 1, "`messages` has no answer, so there is no turn", "")]
    yield from sorted(refused, key=lambda row: row.line)
    yield from transcript.events(found.line)


class _Run:
    """One run, read message by message."""

    def __init__(self, rows: list[Item | Broken], transcript: Transcript, file: str, info: Field | None) -> None:
        self.rows, self.transcript, self.file = rows, transcript, file
        self.refused: list[RefusedRow] = []
        self.at = Place()
        self.person_acts = False
        """The latest command was a person's: what it printed answers no turn."""
        self.policy, self.sampling = _model(info)

    def take(self) -> list[RefusedRow]:
        """Read everything; returns the rows refused."""
        for row in self.rows:
            if isinstance(row, Broken):
                self.at = self.transcript.lose(self.at)
                continue
            try:
                self._message(row.value, row.line)
            except Unreadable as err:
                self.refused.append(RefusedRow(self.file, row.line, str(err), excerpt_of(row.value)))
                self.at = self.transcript.lose(self.at)
        return self.refused

    def _message(self, message: dict[str, Any], line: int) -> None:
        role = message.get("role")
        if role == "assistant" or message.get("object") == "response":
            self._answer(message, line)
        elif role == "tool" or is_output(message):
            self._output(message, line)
        elif role == "user":
            self._user(message, line)
        elif role in ("system", "developer"):
            text = content_text(message.get("content"), "`content`")
            self.at = self.transcript.say(self.at, {"role": "system", "content": text})
        elif role != "exit":
            raise Unreadable(f"role {role!r} is none of system, user, assistant, tool, exit")

    def _answer(self, message: dict[str, Any], line: int) -> None:
        self.person_acts = False
        response = _response(message, line)
        self.at = self.transcript.answer(
            self.at,
            response,
            finish_reason=finish_reason_of(_choice(message).get("finish_reason"), response, _STOPS),
            policy=self.policy,
            line=line,
            sampling=self.sampling,
        )

    def _output(self, message: dict[str, Any], line: int) -> None:
        self.at = self.transcript.result(
            self.at,
            text_field(message, "tool_call_id") or text_field(message, "call_id"),
            output_text(message) if is_output(message) else content_text(message.get("content"), "`content`"),
            line=line,
            kind="terminal_output",
            exit_code=_exit_code(message),
        )

    def _user(self, message: dict[str, Any], line: int) -> None:
        """The task, what a command printed, a complaint about the answer's form, or a person's words."""
        text = content_text(message.get("content"), "`content`")
        extra = _extra(message)
        sent = {"role": "user", "content": text}
        if "exit_status" in extra:
            return  # the mark of the end, which nobody is sent
        if "actions" in extra:
            self.person_acts = True
            self.at = self.transcript.say(self.at, sent)
            return
        if self.at.turn is None or self.at.lost or self.person_acts:
            self.at = self.transcript.say(self.at, sent)
            return
        noted = extra.get("interrupt_type")
        if noted in _BY_PERSON or (noted is None and text.startswith(_PERSON_SAYS)):
            self.at = self.transcript.reply(self.at, text, line=line)
            return
        kind: NextStateKind = "terminal_output" if noted is None else "tool_result"
        self.transcript.observe(self.at, kind, text, line=line, role="user", exit_code=_exit_code(message))
        self.at = self.transcript.say(self.at, sent)


def _response(message: dict[str, Any], line: int) -> Response:
    """The answer; a `response` of the Responses API has its items in `output`."""
    items = message.get("output")
    if message.get("object") == "response" and isinstance(items, list):
        pieces = Pieces(line)
        for item in items:
            if isinstance(item, dict) and is_answer(item):
                pieces.add(item)
        return pieces.response()
    content = message.get("content")
    return Response(
        content=None if content is None else content_text(content, "`content`"),
        reasoning=content_text(message.get("reasoning_content"), "`reasoning_content`") or None,
        tool_calls=tool_calls_of(message),
    )


def _extra(message: dict[str, Any]) -> dict[str, Any]:
    extra = message.get("extra")
    return extra if isinstance(extra, dict) else {}


def _choice(message: dict[str, Any]) -> dict[str, Any]:
    response = _extra(message).get("response")
    choices = response.get("choices") if isinstance(response, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _exit_code(message: dict[str, Any]) -> int | None:
    """What mini-SWE-agent noted; -1, its mark for a command that did not run or was stopped, is none. A number that
    stands in the text is text: the command could have printed it."""
    code = _extra(message).get("returncode")
    return code if type(code) is int and 0 <= code < 1 << 31 else None


def _model(info: Field | None) -> tuple[str, dict[str, Any]]:
    """Name and sampling parameters of the model, as `info.config.model` has them."""
    value = info.value if info is not None else None
    config = value.get("config") if isinstance(value, dict) else None
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict):
        return policy_of(None), {}
    given = model.get("model_kwargs")
    kwargs: dict[str, Any] = given if isinstance(given, dict) else {}
    sampling = {
        key: float(kwargs[key])
        for key in ("temperature", "top_p")
        if type(kwargs.get(key)) in (int, float) and 0 <= kwargs[key] <= _MAX_SAMPLING
    }
    return policy_of(model.get("model_name")), sampling
