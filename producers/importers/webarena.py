"""WebArena's browser runs: a HAR file (HTTP traffic), with the evaluator's `eval_result.json` beside it.

A HAR file does not hold what the agent did, only what its browser then asked for. So:

- Session: a file. Turn: each navigation, a request for a document that the browser was sent to (`navigate`, with
  method, address and posted form, as one tool call). Redirects belong to the navigation that began them.
- Which requests are navigations: those that the recorder marked (`_resourceType`, `Sec-Fetch-Dest`); where it marked
  none, those answered by HTML or a redirect whose path does not end in a file's name.
- Next state: each document that a navigation came to, and each JSON answer up to the next navigation, as a
  `gui_change`: method, address, status and type, and the text where the recorder kept it (else the name of the file
  that it attached). Files of the page's program, such as templates and translations, are left out.
- Verdict: `score` of `eval_result.json`, from 0 to 1, as a `test_verdict` on the last turn. Where that file quotes the
  agent's final answer, the answer is a turn of its own, the last. What was expected is not read: a judge or teacher
  would read the solution there.
- The request: the navigations before, and of what came back the address, status and type (pages are long, and how
  much of one the model saw is not in the file). Nor is the task. The policy is `unknown`.

Order is that of the entries in the file. The evaluator's file is found by its name: `network.har` has
`eval_result.json`, `NAME_network.har` has `NAME_eval_result.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from producers.importers.base import (
    UNKNOWN_POLICY,
    RefusedRow,
    Row,
    SessionDraft,
    Unreadable,
    check_storable,
    session_id_of,
)
from producers.importers.detect import Head
from producers.importers.gui import Message, answer_message
from producers.importers.har import Exchange, exchange_of
from producers.importers.json_scan import Broken, Item, ScannedObject, excerpt_of, read_text, scan_object
from producers.importers.webarena_verdict import Evaluation, evaluation_beside
from schemas.events import Response, ToolCall

NAME = "webarena"
SOURCE = "hindstream/import/webarena"
COMPANIONS = ("*eval_result.json",)

_LOG = re.compile(r'\s*\{\s*"log"\s*:\s*(?=\{)')


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    log = head.value.get("log") if isinstance(head.value, dict) else None
    return isinstance(log, dict) and isinstance(log.get("entries"), list)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of every row is that of its entry."""
    scanned = _scan(read_text(path))
    yield from (RefusedRow(path.name, row.line, row.reason, row.excerpt) for row in scanned.broken)
    entries = scanned.fields.get("entries")
    if entries is None or entries.items is None:
        if not scanned.broken:
            yield RefusedRow(path.name, 1, "the file has no list `log.entries`, so there is no turn", "")
        return
    exchanges: list[Exchange] = []
    for index, item in enumerate(entries.items):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        try:
            exchanges.append(_exchange(item))
        except Unreadable as err:
            yield RefusedRow(path.name, item.line, f"entry {index}: {err}", excerpt_of(item.value))
    evaluation, refused = evaluation_beside(path)
    if refused is not None:
        yield refused
    said = [evaluation.answer, evaluation.score] if evaluation else []
    session_id = session_id_of(SOURCE, [said, [exchange.entry for exchange in exchanges]])
    draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    last = _take(draft, exchanges, evaluation)
    if not draft.turns and not scanned.broken:
        yield RefusedRow(path.name, 1, "no entry is a navigation, so there is no turn", "")
    yield from draft.events(last)


def _take(draft: SessionDraft, exchanges: list[Exchange], evaluation: Evaluation | None) -> int:
    """Make the turns; returns the line of the last entry."""
    sent: list[Message] = []
    marked = any(exchange.marked for exchange in exchanges)
    turn: int | None = None
    redirected: str | None = None
    line = 1
    for exchange in exchanges:
        line = exchange.line
        if exchange.is_navigation(marked) and exchange.url != redirected:
            call = ToolCall(id=None, name="navigate", arguments=exchange.arguments)
            response = Response(tool_calls=[call])
            turn, redirected = _add(draft, sent, response, exchange.line, exchange.started_at), None
        goes_on = exchange.url == redirected
        if exchange.redirect is not None and (goes_on or exchange.is_navigation(marked)):
            redirected = exchange.redirect
            continue
        if turn is None or not (exchange.is_content or goes_on or exchange.is_navigation(marked)):
            continue
        redirected = None if goes_on else redirected
        sent.append({"role": "user", "content": exchange.summary})
        draft.add_next_state(turn, "gui_change", line=line, content=exchange.shown(), observed_at=exchange.started_at)
    if evaluation is not None and evaluation.answer is not None:
        turn = _add(draft, sent, Response(content=evaluation.answer), line, None)
    if evaluation is not None and turn is not None:
        draft.add_next_state(turn, "test_verdict", line=line, verdict=evaluation.score, content=evaluation.explanation)
    return line


def _add(draft: SessionDraft, sent: list[Message], response: Response, line: int, at: str | None) -> int:
    number = draft.add_turn(
        messages=list(sent),
        response=response,
        finish_reason="tool_calls" if response.tool_calls else "stop",
        policy=UNKNOWN_POLICY,
        line=line,
        started_at=at,
    )
    sent.append(answer_message(response))
    return number


def _exchange(item: Item) -> Exchange:
    check_storable(item.value)
    return exchange_of(item.value, item.line)


def _scan(text: str) -> ScannedObject:
    """The fields of `log`, lines counted from the start of the file."""
    start = _LOG.match(text)
    if start is None:
        outer = scan_object(text, frozenset())
        outer.fields.pop("entries", None)
        return outer
    # What is before `log`'s value becomes space, so that lines and columns stay those of the file.
    blank = re.sub(r"[^\n]", " ", text[: start.end()])
    end = text.rstrip()
    inner = end[start.end() : -1] if end.endswith("}") else end[start.end() :]
    return scan_object(blank + inner, frozenset({"entries"}))
