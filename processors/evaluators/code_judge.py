"""Scores that need no model: people's feedback, an environment's verdict, an exit code, the recipe's text rules.

Order of precedence: verdicts, then exit codes, then rules in Python, then text rules. Pure: the same facts always give
the same score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from processors.evaluators.inputs import Answered, Feedback, NextState
from processors.evaluators.rules import asked
from processors.evaluators.votes import Vote
from schemas.recipes import InvalidRecipe, TextRule

_EVEN = 0.5
"""A verdict in [0, 1] says how much was right: above a half is good, below is bad, exactly a half is neutral."""


def votes_of_people(feedback: Sequence[Feedback]) -> list[Vote]:
    """A vote for each feedback that judges: the sign of its score, else its thumbs. A mere correction is none."""
    return [vote for one in feedback if (vote := _person(one)) is not None]


def votes_of_code(answered: Answered, rules: Sequence[TextRule], functions: Sequence[str] = ()) -> list[Vote]:
    """What the next states say by themselves: at most one valid vote, last in the list; before it, invalid ones for
    verdicts that are no number in [0, 1] and for rules in Python that fail. No valid vote: code cannot tell.

    Of several verdicts the lowest counts, of several exit codes the first that is not 0: a turn whose parallel calls
    did not all succeed has not succeeded. Rules are tried in the recipe's order, those in Python first, each on the
    texts in theirs.

    Raises:
        InvalidRecipe: a rule's pattern is no regular expression, or a rule in Python is not installed.
    """
    votes: list[Vote] = []
    verdicts = []
    for state in answered.next_states:
        if state.verdict is None:
            continue
        if math.isfinite(state.verdict) and 0.0 <= state.verdict <= 1.0:
            verdicts.append(state.verdict)
        else:
            votes.append(_code("verdict", None, f"a verdict is in [0, 1], not {state.verdict}", str(state.verdict)))
    if verdicts:
        lowest = min(verdicts)
        score = (lowest > _EVEN) - (lowest < _EVEN)
        return [*votes, _code("verdict", score, f"verdict {lowest:g}", None)]
    codes = [state.exit_code for state in answered.next_states if state.exit_code is not None]
    if codes:
        worst = next((code for code in codes if code != 0), 0)
        return [*votes, _code("exit_code", 1 if worst == 0 else -1, f"exit code {worst}", None)]
    for name in functions:
        if (vote := asked(name, answered)) is not None:
            votes.append(vote)
            if vote.status == "valid":
                return votes
    for number, rule in enumerate(rules):
        found = _first_match(rule, answered.next_states)
        if found is not None:
            return [*votes, _code(f"rule {number}", rule.score, f"{rule.pattern!r} found {found!r}", None)]
    return votes


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> re.Pattern[str]:
    """`pattern` as a case-insensitive regular expression.

    Raises:
        InvalidRecipe: it is none.
    """
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as err:
        raise InvalidRecipe(f"pattern {pattern!r} is no regular expression: {err}") from err


def _person(feedback: Feedback) -> Vote | None:
    if feedback.score is not None and math.isfinite(feedback.score):
        score = (feedback.score > 0) - (feedback.score < 0)
        why = f"score {feedback.score:g}"
    elif feedback.thumbs in ("up", "down"):
        score = 1 if feedback.thumbs == "up" else -1
        why = f"thumbs {feedback.thumbs}"
    else:
        return None
    return Vote(
        status="valid",
        annotator_kind="HUMAN",
        annotator=feedback.author or "unnamed",
        score=score,
        explanation=why,
    )


def _code(annotator: str, score: int | None, explanation: str, raw: str | None) -> Vote:
    return Vote(
        status="invalid" if score is None else "valid",
        annotator_kind="CODE",
        annotator=annotator,
        score=score,
        explanation=explanation,
        raw=raw,
    )


def _first_match(rule: TextRule, states: Sequence[NextState]) -> str | None:
    pattern = compiled(rule.pattern)
    for state in states:
        if state.kind in rule.kinds and state.content and (match := pattern.search(state.content)):
            return match.group(0)
    return None
