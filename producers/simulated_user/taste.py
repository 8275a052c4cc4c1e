"""What the simulated user likes: an answer of 4 to 25 words that is finished and on topic.

The last two conditions are there because a policy that is only asked to be short soon says nothing at all.
"""

from __future__ import annotations

import re
from typing import Literal

MIN_WORDS = 4
MAX_WORDS = 25

Opinion = Literal["liked", "too_long", "too_short", "unfinished", "off_topic"]

_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_FINISHED = re.compile(r"[.!?][\"')\]]*$")
_COMMON = frozenset(
    (
        *("what", "why", "where", "how", "when", "who", "which", "does", "are", "was", "can", "could", "should"),
        *("would", "will", "find", "make", "have", "with", "that", "this", "the", "and", "for", "from", "into"),
        *("about", "important", "eat"),
    )
)
REACTIONS: dict[Opinion, str] = {
    "liked": "Thanks, that is just what I needed.",
    "too_long": "That is too long for me. Answer in one short sentence of at most twenty words.",
    "unfinished": "You did not finish. Answer in one short sentence of at most twenty words.",
    "too_short": "That says too little. Answer in one full sentence of eight to twenty words.",
    "off_topic": "That is not what I asked. Answer my question in one short sentence of at most twenty words.",
}
"""What he says next: thanks, or a complaint with what to do instead."""

LIKED_PATTERN = r"^thanks\b"
DISLIKED_PATTERN = r"^(that is too long|you did not finish|that says too little|that is not what i asked)\b"
HINT_PATTERN = r"(Answer (?:my question )?in one .*words\.)"
"""Rules of a recipe that read the reactions above: see `schemas.recipes.TextRule` and `HintSpec.patterns`."""


def words(text: str) -> list[str]:
    """The words of `text`, lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def on_topic(question: str, answer: str) -> bool:
    """Whether the answer names the question's subject: one content word of it, in whatever form."""
    subjects = [word for word in words(question) if len(word) >= 3 and word not in _COMMON]
    return any(_same_stem(subject, word) for word in words(answer) for subject in subjects)


def _same_stem(one: str, other: str) -> bool:
    """Equal first letters: three of a short word (bake, baking; bee, bees), four of a longer one."""
    letters = min(4, max(3, min(len(one), len(other)) - 1))
    return len(one) >= 3 and len(other) >= 3 and one[:letters] == other[:letters]


def opinion(question: str, answer: str) -> Opinion:
    """What he thinks of `answer`."""
    count = len(words(answer))
    if count > MAX_WORDS:
        return "too_long"
    if count < MIN_WORDS:
        return "too_short"
    if not _FINISHED.search(answer.strip()):
        return "unfinished"
    if not on_topic(question, answer):
        return "off_topic"
    return "liked"
