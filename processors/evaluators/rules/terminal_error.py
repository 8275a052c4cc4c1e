"""`terminal-error`: a shell's or interpreter's own words for a command that failed, where no exit code came with it."""

from __future__ import annotations

import re

from processors.evaluators.inputs import Answered
from processors.evaluators.rules import Finding
from processors.evaluators.rules.reading import worst

_SAYS = re.compile(
    r"^(?:.*: )?(?:command not found|no such file or directory|permission denied)\s*$"
    r"|^Traceback \(most recent call last\)"
    r"|^(?:fatal|panic): "
    r"|^! \[rejected\]"
    r"|^CONFLICT \("
    r"|^Segmentation fault",
    re.IGNORECASE | re.MULTILINE,
)


def terminal_error(answered: Answered) -> Finding | None:
    """Bad where a line is such a message. Never good: a command that says nothing bad need not have helped."""
    return worst(answered, ("terminal_output",), _read)


def _read(text: str) -> Finding | None:
    match = _SAYS.search(text)
    return None if match is None else Finding(-1, f"the terminal printed {match.group(0).strip()!r}")
