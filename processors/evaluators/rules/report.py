"""`test-report`: what the last line of a test runner says, where no verdict came with it.

Read: pytest, unittest, Jest and Vitest, Go, Rust. Expected failures and skipped tests are no failures; a run of no
tests, or of skipped ones alone, says nothing about the work: 0.
"""

from __future__ import annotations

import re
from collections import Counter

from processors.evaluators.inputs import Answered
from processors.evaluators.rules import Finding
from processors.evaluators.rules.reading import worst

_COUNTS = re.compile(r"\b(\d+) (passed|failed|errors?|xfailed|xpassed|skipped|ignored)\b")
_SUMMARY = re.compile(r"\b\d+ (?:passed|failed|errors?|skipped|xfailed)\b.*\bin \d|^Tests:|^test result:", re.MULTILINE)
_UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n+(OK|FAILED)", re.MULTILINE)
_GO = re.compile(r"^(ok|FAIL)[ \t]+\S+[ \t]+(?:[\d.]+s|\(cached\))", re.MULTILINE)
_NOTHING = re.compile(r"\bno tests ran\b|\bcollected 0 items\b", re.IGNORECASE)


def report(answered: Answered) -> Finding | None:
    """Good where tests passed and none failed, bad where one did, neutral where none ran."""
    return worst(answered, ("test_verdict", "terminal_output"), _read)


def _read(text: str) -> Finding | None:
    if found := _UNITTEST.search(text):
        if found[1] == "0":
            return Finding(0, "no test ran")
        return Finding(1 if found[2] == "OK" else -1, f"{found[1]} tests: {found[2]}")
    if packages := _GO.findall(text):
        failed = packages.count("FAIL")
        return Finding(-1 if failed else 1, f"{failed} of {len(packages)} packages failed")
    if _NOTHING.search(text):
        return Finding(0, "no test ran")
    lines = [line for line in text.splitlines() if _SUMMARY.search(line)]
    if not lines:
        return None
    counts: Counter[str] = Counter()
    for number, word in _COUNTS.findall(lines[-1]):
        counts[word.removesuffix("s") if word.startswith("error") else word] += int(number)
    words = lines[-1].strip(" =")
    if counts["failed"] or counts["error"]:
        return Finding(-1, words)
    return Finding(1 if counts["passed"] or counts["xfailed"] else 0, words)
