"""Which hints are refused: those that say too little, quote the answer, or hold private data.

A hint that repeats the answer, or the correction of it, teaches the policy to copy: under it the teacher finds the very
tokens likely that the hint spells out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from processors.evaluators.inputs import Answered
from schemas.recipes import HintSpec

Refuse = Callable[[str], str | None]
"""Why a hint is refused; None: it is not."""

_LEAST_CORRECTION = 3
"""A correction of fewer words than that is no quotation: it may be "yes", or a name that the task holds too."""
_LEAST_DIGITS = 9
"""Of a telephone number; a date has eight."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""A word; in scripts without spaces a character."""
_EMPTY = frozenset(
    """
    a an and any as at be been being both but by can could did do does doing done for from had has have having he
    her here him his how i if in into is it its just let may me might more most much must my next no not now of on
    one or other our out please really shall she should so some such than that the their them then there these
    they thing things this those time to too up us very was way we well were what when where which while who why
    will with would you your better best good improve
    """.split()  # noqa: SIM905
)
"""English words that say nothing about what to do differently, also `better` and `improve` without a how."""

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")
_PHONE = re.compile(r"(?<![\w.])\+?\(?\d[\d ()./-]{6,}\d(?!\w)")
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
_KEY = re.compile(
    r"-----BEGIN "
    r"|\b(?:sk|pk|rk|ghp|gho|ghs|glpat|hf|xox[abprs])[-_][A-Za-z0-9_-]{12,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{8,}\.[\w-]{8,}"
    r"|\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{32,}"
)
_SECRET = re.compile(
    r"\b(?:password|passwd|secret|api[ _-]?key|access[ _-]?token)\s*(?:[:=]\s*\S{4,}|\bis\s+(?=\S*\d)\S{4,})",
    re.IGNORECASE,
)
_DECIMAL = re.compile(r"\d+\.\d+")


def refusing(spec: HintSpec, answered: Answered, response: dict[str, Any] | None) -> Refuse:
    """What `spec` refuses of hints for a turn with this response; None where it is not at hand, and then only
    corrections count as what a hint must not quote."""
    corrections = [one.correction for one in answered.feedback if one.correction]
    quotable = [(_words(text), spec.max_quoted) for text in _texts(response)]
    for text in corrections:
        words = _words(text)
        if len(words) >= _LEAST_CORRECTION:
            quotable.append((words, min(spec.max_quoted, len(words))))

    def refuse(hint: str) -> str | None:
        words = _words(hint)
        telling = sum(word not in _EMPTY for word in words)
        if telling < spec.min_words:
            return f"too little: {telling} words with a meaning of their own, at least {spec.min_words}"
        if spec.max_quoted and any(_repeats(words, source, least) for source, least in quotable):
            return f"leak: it repeats {spec.max_quoted} words of the answer in a row, or a whole correction"
        kind = None if spec.allow_private else private(hint)
        return None if kind is None else f"private: it holds {kind}"

    return refuse


def private(text: str) -> str | None:
    """The kind of private data that `text` holds, never the data themselves; None: none is found."""
    if _EMAIL.search(text):
        return "an e-mail address"
    if _KEY.search(text) or _SECRET.search(text):
        return "a key or password"
    for match in _PHONE.finditer(text):
        if _DECIMAL.fullmatch(match.group(0)):
            continue
        number = _DATE.sub(" ", match.group(0))
        if sum(character.isdigit() for character in number) >= _LEAST_DIGITS:
            return "a telephone number"
    return None


def _texts(response: dict[str, Any] | None) -> Iterable[str]:
    if response is None:
        return []
    calls = [call["arguments"] for call in response.get("tool_calls") or []]
    return [text for text in (response.get("content"), *calls) if text]


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _repeats(words: list[str], source: list[str], least: int) -> bool:
    """Whether `least` words of `source` in a row are in `words`."""
    runs = {tuple(source[at : at + least]) for at in range(len(source) - least + 1)}
    return any(tuple(words[at : at + least]) in runs for at in range(len(words) - least + 1))
