"""`tool-error`: whether a tool's result is an error, by its fields where it is JSON, else by how it begins.

A result that only mentions errors is none: three lines of a log that hold the word, `"errors": 0`, a document about
failed payments. So fields count by their value, and words only where an error message has them, at the start.
"""

from __future__ import annotations

import json
import re
from typing import Any

from processors.evaluators.inputs import Answered
from processors.evaluators.rules import Finding
from processors.evaluators.rules.reading import worst

_FLAGS = ("success", "ok", "succeeded")
_ERROR_FLAGS = ("isError", "is_error")
_MESSAGES = ("error", "exception", "error_message")
_BAD_STATES = frozenset({"error", "failed", "failure", "denied", "rejected", "timeout"})
_GOOD_STATES = frozenset({"success", "succeeded", "ok", "done", "completed"})
_BEGINS = re.compile(
    r"(?:fatal |internal )?(?:error|exception|failure)\b\s*[:(]"
    r"|traceback \(most recent call last\)"
    r"|(?:unknown|no such) (?:tool|function)\b"
    r"|invalid (?:argument|parameter|input)s?\b"
    r"|(?:http[ /\d.]*)?\b(?:4\d\d|5\d\d) (?:bad|unauthori|forbidden|not|too|internal|service|gateway|method|conflict)"
    r"|(?:the )?(?:request|call|tool|connection|operation) (?:has )?(?:timed out|failed|was refused)",
    re.IGNORECASE,
)
_BEGINS_WELL = re.compile(r"(?:status: ?)?(?:success|succeeded)\b", re.IGNORECASE)


def tool_error(answered: Answered) -> Finding | None:
    """Bad where a tool's result says that the call failed, good where it says that it worked."""
    return worst(answered, ("tool_result",), _read)


def _read(text: str) -> Finding | None:
    if text.lstrip().startswith("{"):
        try:
            plain = json.loads(text)
        except ValueError:
            return None
        return _fields(plain)
    if match := _BEGINS.match(text.lstrip()):
        return Finding(-1, f"the result begins with {match.group(0)!r}")
    if match := _BEGINS_WELL.match(text.lstrip()):
        return Finding(1, f"the result begins with {match.group(0)!r}")
    return None


def _fields(plain: dict[str, Any]) -> Finding | None:
    for name in _MESSAGES:
        if plain.get(name):
            return Finding(-1, f"field {name!r} says something")
    for name in _ERROR_FLAGS:
        if plain.get(name) is True:
            return Finding(-1, f"field {name!r} is true")
    for name in _FLAGS:
        if isinstance(plain.get(name), bool):
            return Finding(1 if plain[name] else -1, f"field {name!r} is {str(plain[name]).lower()}")
    state = plain.get("status")
    if isinstance(state, str) and state.lower() in _BAD_STATES | _GOOD_STATES:
        return Finding(-1 if state.lower() in _BAD_STATES else 1, f"status {state!r}")
    if isinstance(state, int) and not isinstance(state, bool) and state >= 400:
        return Finding(-1, f"status {state}")
    return None
