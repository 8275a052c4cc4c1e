"""WebArena: navigations are turns, documents and JSON answers are what they brought, the evaluator's score judges."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from producers.importers import webarena
from producers.importers.detect import Head
from tests.producers.imported import Imported

FILE = "data/webarena/verified_108_network.docs.har"
VERDICT = "data/webarena/verified_108_eval_result.json"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes entries as a HAR file, with the evaluator's file beside it, and reads it."""

    def entries_read(*entries: Any, result: Any = None) -> Imported:
        path = tmp_path / "network.har"
        path.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}, indent=1))
        if result is not None:
            text = result if isinstance(result, str) else json.dumps(result)
            (tmp_path / "eval_result.json").write_text(text)
        return Imported(webarena, path)

    return entries_read


def entry(url: str, mime: str = "text/html", status: int = 200, method: str = "GET", **more: Any) -> dict[str, Any]:
    content = {"mimeType": f"{mime}; charset=UTF-8"} | more.pop("content", {})
    response = {"status": status, "content": content, "headers": [], "redirectURL": more.pop("to", "")}
    request = {"method": method, "url": url, "headers": more.pop("headers", [])} | more.pop("request", {})
    return {"startedDateTime": "2026-01-01T00:00:00Z", "request": request, "response": response} | more


def test_the_shared_file_counted_by_its_lines(shared_dir: Path) -> None:
    found = Imported(webarena, shared_dir / FILE)
    text = (shared_dir / FILE).read_text()
    urls = re.findall(r'"url": "([^"]*)"', text)
    pages = [url for url in urls if "." not in urlsplit(url).path.rsplit("/", 1)[-1]]
    assert (len(urls), len(pages)) == (50, 6), "the others are templates and translations: files of the program"
    data = [url for url in pages if "isAjax=true" in url]
    redirects = text.count('"status": 302')
    assert (len(data), redirects) == (3, 1)
    navigations = len(pages) - len(data) - redirects
    assert found.counts() == {
        "sessions": 1,
        "turns": navigations + 1,  # and the final answer, which the evaluator quotes
        "next_states": {"gui_change": navigations + len(data), "test_verdict": 1},
        "verdicts": 1,
        "refused": 0,
    }
    assert navigations == 2


def test_the_shared_verdict_and_answer(shared_dir: Path) -> None:
    found = Imported(webarena, shared_dir / FILE)
    result = json.loads((shared_dir / VERDICT).read_text())
    last = found.turns[-1]
    assert last.response.content == result["evaluators_results"][0]["actual"]
    assert [(s.turn_id, s.verdict, s.content) for s in found.states if s.kind == "test_verdict"] == [
        (last.turn_id, result["score"], "success 1; AgentResponseEvaluator: success 1.0")
    ]
    said = json.dumps([[turn.messages, turn.response.reasoning] for turn in found.turns])
    assert "January" not in said, "what was expected must not be read"
    lines = (shared_dir / FILE).read_text().split("\n")
    assert all(lines[turn.origin.line - 1] == "   {" for turn in found.turns[:-1] if turn.origin)


def test_without_the_evaluator_there_is_no_verdict(shared_dir: Path, tmp_path: Path) -> None:
    shutil.copy(shared_dir / FILE, tmp_path / "network.har")
    found = Imported(webarena, tmp_path / "network.har")
    assert (len(found.turns), found.counts()["verdicts"], found.refused) == (2, 0, [])


def test_navigations_and_what_they_bring(read: Read) -> None:
    found = read(
        entry("http://x/api/ping", "application/json"),  # before any navigation: nobody's
        entry("http://x/", status=302, to="/home"),
        entry("http://x/home", status=302, to="http://x/start"),
        entry("http://x/start", content={"text": "<h1>hi</h1>"}),
        entry("http://x/part.html"),
        entry("http://x/pic", "image/png"),
        entry("http://x/api/list", "application/json", content={"text": "null"}),
        entry("http://x/login", status=200, method="POST", request={"postData": {"text": "user=a"}}),
    )
    assert [turn.response.tool_calls[0].arguments for turn in found.turns] == [
        '{"method":"GET","url":"http://x/"}',
        '{"method":"POST","url":"http://x/login","body":"user=a"}',
    ]
    assert [states for _, states in found.answers()] == [
        ["GET http://x/start -> 200 text/html\n<h1>hi</h1>", "GET http://x/api/list -> 200 application/json\nnull"],
        ["POST http://x/login -> 200 text/html"],
    ]
    assert [text for _, text in found.asked(1)][1:] == [
        "GET http://x/start -> 200 text/html",
        "GET http://x/api/list -> 200 application/json",
    ], "a request says where it was, not the whole page"


def test_a_redirect_that_never_arrived_hides_no_later_visit(read: Read) -> None:
    found = read(entry("http://x/a", status=302, to="/b"), entry("http://x/c"), entry("http://x/b"))
    assert [states for _, states in found.answers()] == [
        [],
        ["GET http://x/c -> 200 text/html"],
        ["GET http://x/b -> 200 text/html"],
    ]


@pytest.mark.parametrize(
    "mark", [{"_resourceType": "document"}, {"headers": [{"name": "Sec-Fetch-Dest", "value": "document"}]}]
)
def test_a_recorder_that_marks_navigations_is_believed(read: Read, mark: dict[str, Any]) -> None:
    found = read(
        entry("http://x/page.php", **mark), entry("http://x/fragment"), entry("http://x/data", "application/json")
    )
    assert [states for _, states in found.answers()] == [
        ["GET http://x/page.php -> 200 text/html", "GET http://x/data -> 200 application/json"]
    ]


@pytest.mark.parametrize(
    ("result", "verdicts", "refused"),
    [
        ({"score": 0.0, "status": "failure", "evaluators_results": []}, [0.0], 0),
        ({"score": None}, [], 1),
        ({"score": 7}, [], 1),
        ([], [], 1),
        ("{", [], 1),
    ],
)
def test_the_evaluators_file(read: Read, result: Any, verdicts: list[float], refused: int) -> None:
    found = read(entry("http://x/"), result=result)
    assert [state.verdict for state in found.states if state.kind == "test_verdict"] == verdicts
    assert [one.file for one in found.refused] == ["eval_result.json"] * refused


def test_bad_entries_cost_themselves(read: Read, tmp_path: Path) -> None:
    found = read(entry("http://x/"), 7, {"request": {}}, entry("", status=200), entry("http://x/b"))
    assert [one.reason.split(":", 1)[0] for one in found.refused] == ["entry 1", "entry 2", "entry 3"]
    assert len(found.turns) == 2
    path = tmp_path / "network.har"
    path.write_text(path.read_text().replace('"status": 200', '"status": 200 oops', 1))
    found = Imported(webarena, path)
    assert len(found.turns) == 1, "a syntax error costs its entry"
    assert "reading went on at line" in found.refused[0].reason
    path.write_text('{"log": {"version": "1.2"}}')
    assert Imported(webarena, path).refused[0].reason == "the file has no list `log.entries`, so there is no turn"


def test_what_is_taken_for_one() -> None:
    assert webarena.sniff(Head("f", b'{"log": {"version": "1.2", "entries": [{"req', False))
    for other in (b'{"log": []}', b'{"score": 1.0}', b"[]"):
        assert not webarena.sniff(Head("f", other, True))
