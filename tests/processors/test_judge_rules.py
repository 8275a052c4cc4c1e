"""The rules in Python that come with Hindstream: they read fields and beginnings, not any word anywhere."""

from __future__ import annotations

import pytest

from processors.evaluators.inputs import Answered, NextState
from processors.evaluators.rules import rule_named, rule_names
from schemas.events import NextStateKind

KIND: dict[str, NextStateKind] = {
    "tool-error": "tool_result",
    "test-report": "test_verdict",
    "terminal-error": "terminal_output",
    "window-error": "gui_change",
    "reply-words": "user_reply",
}


def said(rule: str, *texts: str, kind: NextStateKind | None = None) -> int | None:
    states = tuple(NextState(kind=kind or KIND[rule], content=text) for text in texts)
    found = rule_named(rule)(Answered(turn_id="t", session_id="s", next_states=states))
    return None if found is None else found.score


def test_all_are_installed() -> None:
    assert set(KIND) <= set(rule_names())


@pytest.mark.parametrize(
    ("rule", "text", "score"),
    [
        ("tool-error", '{"errors": 0, "error": null, "rows": [1]}', None),
        ("tool-error", '{"error": "no such key"}', -1),
        ("tool-error", '{"error": "", "ok": true}', 1),
        ("tool-error", '{"isError": false, "success": false}', -1),
        ("tool-error", '{"status": 503}', -1),
        ("tool-error", '{"status": 200}', None),
        ("tool-error", '{"status": true}', None),
        ("tool-error", '{"error": cut off', None),
        ("tool-error", '["error"]', None),
        ("tool-error", "Error: no such order", -1),
        ("tool-error", "  Traceback (most recent call last):\n ...", -1),
        ("tool-error", "404 Not Found", -1),
        ("tool-error", "404 rooms are free", None),
        ("tool-error", "The log says: Error: disk full", None),
        ("tool-error", "Errors are explained on page 4", None),
        ("test-report", "30 passed, 2 xfailed in 2.11s", 1),
        ("test-report", "2 xfailed in 0.1s", 1),
        ("test-report", "== 1 failed, 30 passed, 2 errors in 2.11s ==", -1),
        ("test-report", "12 skipped in 0.02s", 0),
        ("test-report", "collected 0 items\n\nno tests ran in 0.01s", 0),
        ("test-report", "Ran 0 tests in 0.000s\n\nOK", 0),
        ("test-report", "Ran 2 tests in 0.000s\n\nFAILED (errors=1)", -1),
        ("test-report", "ok  \ta/b\t0.2s\nFAIL\ta/c\t0.1s", -1),
        ("test-report", "ok  \ta/b\t(cached)", 1),
        ("test-report", "test result: ok. 14 passed; 0 failed; 0 ignored", 1),
        ("test-report", "Tests:       2 failed, 7 passed, 9 total", -1),
        ("test-report", "3 passed laws and 2 failed banks", None),
        ("terminal-error", "bash: treee: command not found", -1),
        ("terminal-error", "the log mentions: command not found, twice", None),
        ("terminal-error", "fatal: not a git repository", -1),
        ("terminal-error", "error_handler.c compiled", None),
        ("window-error", "No change.", -1),
        ("window-error", "The price shows no change", None),
        ("window-error", "Your message could not be sent", -1),
        ("window-error", "Error reports: 4 reports", None),
        ("reply-words", "Thanks, perfect!", 1),
        ("reply-words", "Thanks! Could you make it less formal?", None),
        ("reply-words", "Great, but that is wrong.", None),
        ("reply-words", "Check again.", -1),
        ("reply-words", "I meant it.", None),
        ("reply-words", "Tell me about the Great Wall, please", None),
    ],
)
def test_what_a_rule_makes_of_a_text(rule: str, text: str, score: int | None) -> None:
    assert said(rule, text) == score


def test_of_parallel_results_the_worst_counts_and_other_kinds_are_not_read() -> None:
    assert said("tool-error", '{"ok": true}', "a list", "Error: no") == -1
    assert said("tool-error", '{"ok": true}', "a list") == 1
    assert said("tool-error", "Error: no", kind="user_reply") is None
    assert said("reply-words") is None
