"""LangSmith's runs: JSON lines or a list, one run a row, or root runs with `child_runs` within.

- Session: the thread that `extra.metadata` names (`thread_id`, `conversation_id`, `session_id`), else the trace. The
  field `session_id` of a run is LangSmith's project, not a conversation.
- Turn: a run of type `llm`; where one stands within another, the inner one. Chains and other runs repeat what their llm
  runs say, and are not turns. A run with `error` and without outputs is a turn that ended in `error`.
- Tool runs add the result that no request shows: see `producers.importers.trace`.
- `feedback_stats`: each key with a mean is a score, of people where its sources say `app` or its key says `feedback` or
  `user`, else a `test_verdict`. On an llm run it is on that turn, on another run on the last turn within it.
- Rows are put in order by `dotted_order` and by what their requests hold, not by their place in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from producers.importers.base import UNKNOWN_POLICY, RefusedRow, Row, Unreadable, check_storable
from producers.importers.encoded import decoded
from producers.importers.json_scan import Broken, Item, excerpt_of, json_type
from producers.importers.model_calls import model_call, tool_run
from producers.importers.scores import Score
from producers.importers.spans import Scored, Span, moment, rows_of_spans, sampling_of

_THREADS = ("thread_id", "conversation_id", "session_id")
Fields = dict[str, Any]


def is_run(row: Any) -> bool:
    """Whether a row is a run of LangSmith."""
    return isinstance(row, dict) and "run_type" in row and bool(row.keys() & {"trace_id", "dotted_order", "inputs"})


def read(items: Iterable[Item | Broken], file: str, *, source: str, format_name: str) -> Iterator[Row]:
    """The events of the runs. A run's line is that of its row."""
    runs: dict[str, tuple[Fields, int]] = {}
    for item in items:
        try:
            if isinstance(item, Broken):
                raise Unreadable(item.reason)
            for run in _with_children(item.value):
                check_storable(run)
                key = _text(run, "id", "run_id")
                if key is None:
                    raise Unreadable("a run without `id`")
                if key in runs:  # written once at its start, once at its end
                    first, line = runs[key]
                    runs[key] = (first | {name: value for name, value in run.items() if value is not None}, line)
                else:
                    runs[key] = (run, item.line)
        except Unreadable as err:
            excerpt = item.excerpt if isinstance(item, Broken) else excerpt_of(item.value)
            yield RefusedRow(file, item.line, str(err), excerpt)
    threads = _threads(runs)
    spans: list[Span] = []
    scores: list[Scored] = []
    for key, (run, line) in runs.items():
        trace = _trace_of(key, run, runs)
        bare = _bare(key, run, line, trace, threads.get(trace, trace))
        try:
            spans.append(_span(bare, run))
        except Unreadable as err:
            yield RefusedRow(file, line, f"run {key}: {err}", excerpt_of(run))
            spans.append(bare)
        scores += [Scored(score=score, line=line, span=key, trace=bare.trace) for score in _scores(key, run)]
    yield from rows_of_spans(spans, scores, source=source, format_name=format_name, file=file)


def _with_children(run: Any) -> list[Fields]:
    """The run and all runs within it."""
    found: list[Fields] = []
    waiting = [run]
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, dict) or "run_type" not in one:
            raise Unreadable(f"is a JSON {json_type(one)}, not a run with a `run_type`")
        children = one.get("child_runs")
        if isinstance(children, list):
            waiting += [
                child | {"parent_run_id": child.get("parent_run_id") or one.get("id")}
                if isinstance(child, dict)
                else child
                for child in children
            ]
        found.append({name: value for name, value in one.items() if name != "child_runs"})
    return found


def _threads(runs: dict[str, tuple[Fields, int]]) -> dict[str, str]:
    """The session of each trace: the thread that any of its runs names, else the trace itself."""
    threads: dict[str, str] = {}
    for key, (run, _) in runs.items():
        thread = _text(_object(_object(run.get("extra")).get("metadata")), *_THREADS)
        if thread:
            threads.setdefault(_trace_of(key, run, runs), thread)
    return threads


def _trace_of(key: str, run: Fields, runs: dict[str, tuple[Fields, int]]) -> str:
    """The trace that a run is part of: named by it, or by a run above it, else the topmost run in the file."""
    seen = {key}
    while (named := _text(run, "trace_id") or _dotted_root(run)) is None:
        parent = _text(run, "parent_run_id")
        if parent is None or parent not in runs or parent in seen:
            return key
        seen.add(parent)
        key, run = parent, runs[parent][0]
    return named


def _bare(key: str, run: Fields, line: int, trace: str, session: str) -> Span:
    raw = {name: run.get(name) for name in ("run_type", "name", "dotted_order", "inputs", "outputs", "error")}
    return Span(key=key, parent=_text(run, "parent_run_id"), trace=trace, session=session, line=line, raw=raw)


def _span(bare: Span, run: Fields) -> Span:
    kind = run.get("run_type")
    if kind not in ("llm", "tool"):
        return bare
    inputs, outputs = run.get("inputs"), run.get("outputs") or None
    common: dict[str, Any] = {"key": bare.key, "order": _order(run, bare.line), "line": bare.line}
    extra = _object(run.get("extra"))
    metadata, parameters = _object(extra.get("metadata")), _object(extra.get("invocation_params"))
    if kind == "tool":
        given = inputs.get("input", inputs) if isinstance(inputs, dict) else inputs
        result = outputs.get("output", outputs) if isinstance(outputs, dict) else outputs
        if result is None and isinstance(run.get("error"), str):
            result = run["error"]  # what went wrong is what the model was told
        found = tool_run(
            **common,
            name=_text(run, "name") or "",
            given=given,
            result=result,
            call_id=_text(extra, "tool_call_id") or _text(metadata, "tool_call_id"),
            ended_at=_text(run, "end_time"),
        )
        return replace(bare, run=found)
    call = model_call(
        **common,
        sent=inputs or None,
        said=outputs,
        failed=bool(run.get("error")),
        tools=parameters.get("tools"),
        policy=_text(metadata, "ls_model_name") or _text(parameters, "model", "model_name") or UNKNOWN_POLICY,
        sampling=sampling_of(parameters),
        times=(_text(run, "start_time"), _text(run, "end_time")),
    )
    return replace(bare, call=call)


def _order(run: Fields, line: int) -> tuple[Any, ...]:
    """By `dotted_order`, whose last part begins with the run's start; without it, by the start time."""
    dotted = _text(run, "dotted_order")
    if dotted:
        stamp = dotted.rsplit(".", 1)[-1].split("Z", 1)[0]
        iso = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:11]}:{stamp[11:13]}:{stamp[13:15]}.{stamp[15:] or '0'}"
        found = moment(f"{iso}+00:00", line)
        if found[0] == 0:
            return found
    return moment(run.get("start_time"), line)


def _dotted_root(run: Fields) -> str | None:
    dotted = _text(run, "dotted_order")
    return dotted.split(".", 1)[0].split("Z", 1)[-1] or None if dotted else None


def _scores(key: str, run: Fields) -> list[Score]:
    stats = decoded(run.get("feedback_stats"))
    found: list[Score] = []
    for name, stat in stats.items() if isinstance(stats, dict) else ():
        mean = stat.get("avg") if isinstance(stat, dict) else None
        if isinstance(mean, bool) or not isinstance(mean, (int, float)):
            continue
        comments = stat.get("comments")
        comments = [text for text in comments if isinstance(text, str)] if isinstance(comments, list) else []
        by_people = any(word in name.lower() for word in ("feedback", "user")) or '"app"' in str(stat.get("sources"))
        found.append(
            Score(
                key=f"{key}/{name}",
                name=name,
                value=mean,
                comment="; ".join(comments) or None,
                by_people=by_people,
            )
        )
    return found


def _object(value: Any) -> Fields:
    return value if isinstance(value, dict) else {}


def _text(holder: Fields, *names: str) -> str | None:
    return next((value for name in names if isinstance(value := holder.get(name), str) and value), None)
