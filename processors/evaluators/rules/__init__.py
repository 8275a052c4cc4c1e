"""Rules in Python: functions that read what answered a turn and say whether it was good, found by entry point.

A recipe names them in `judge.functions`. A rule must be pure: a replay asks it again and must hear the same. It must be
quick too, since it runs inside the transaction that decides a batch: no network, no file, no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from processors.evaluators.inputs import Answered
from processors.evaluators.votes import Vote
from schemas.recipes import InvalidRecipe

GROUP = "hindstream.rules"
"""The entry point group: name of the rule -> the function, of this package or of any other."""


@dataclass(frozen=True)
class Finding:
    """What a rule found: `score` is +1, 0 or -1, `why` says it in words."""

    score: int
    why: str


Rule = Callable[[Answered], Finding | None]
"""None: the rule cannot tell, and the next one is asked."""


def rule_names() -> list[str]:
    """The rules that are installed."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


@cache
def rule_named(name: str) -> Rule:
    """The rule of that name.

    Raises:
        InvalidRecipe: none is installed under it, or it cannot be loaded.
    """
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        known = ", ".join(rule_names()) or "none"
        raise InvalidRecipe(f"judge.functions: no package brings a rule {name!r} (there are: {known})")
    try:
        rule: Rule = found[0].load()
    except Exception as err:  # whatever a strange package does
        raise InvalidRecipe(f"judge.functions: {name!r} cannot be loaded ({type(err).__name__}: {err})") from err
    if not callable(rule):
        raise InvalidRecipe(f"judge.functions: {name!r} is a {type(rule).__name__}, not a function")
    return rule


def asked(name: str, answered: Answered) -> Vote | None:
    """The rule's vote; None where it cannot tell. One that raises, or says something that is no finding, votes invalid
    and decides nothing.

    Raises:
        InvalidRecipe: see `rule_named`.
    """
    rule = rule_named(name)
    try:
        found = rule(answered)
    except Exception as err:  # a rule of anybody's: the turn goes on, and the vote says what it was
        return _vote(name, None, f"the rule raised {type(err).__name__}: {err}", None)
    if found is None:
        return None
    if not isinstance(found, Finding) or found.score not in (-1, 0, 1):
        return _vote(name, None, "the rule must say None, or a Finding with a score of +1, 0 or -1", repr(found))
    return _vote(name, int(found.score), found.why, None)


def _vote(name: str, score: int | None, explanation: str, raw: str | None) -> Vote:
    return Vote(
        status="invalid" if score is None else "valid",
        annotator_kind="CODE",
        annotator=name,
        score=score,
        explanation=explanation,
        raw=raw,
    )
