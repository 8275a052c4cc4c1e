"""`reply-words`: praise and complaints in English that mean what they say.

A reply with both, or with praise and a wish (`could you`, `just one thing`), says nothing to this rule: a change
request that sounds polite must not be praise. Sarcasm is beyond it.
"""

from __future__ import annotations

import re

from processors.evaluators.inputs import Answered
from processors.evaluators.rules import Finding
from processors.evaluators.rules.reading import worst

_PRAISE = re.compile(
    r"\b(?:thanks|thank you|perfect|great|excellent|wow|well done|good to know|good catch|not bad"
    r"|(?:it|that) (?:works|worked|helps|helped)|(?:just|exactly) what i (?:needed|wanted)|all (?:that )?i needed)\b",
    re.IGNORECASE,
)
_COMPLAINT = re.compile(
    r"\b(?:too (?:long|short|formal|vague)|that(?: is|'s) (?:wrong|not (?:right|true|correct|what))"
    r"|did you (?:even )?read|check again|should have been|i mean\b|never mind|not what i (?:asked|wanted|meant)"
    r"|(?:does|do|is|are) not (?:work|right|correct|true))",
    re.IGNORECASE,
)
_WISH = re.compile(
    r"\b(?:but|however|could you|can you|would you|please|instead|just one|one (?:tiny |small )?thing|did not ask"
    r"|a (?:little|bit) (?:less|more))\b",
    re.IGNORECASE,
)


def reply_words(answered: Answered) -> Finding | None:
    """Good or bad by the reply's words, nothing where they say both."""
    return worst(answered, ("user_reply",), _read)


def _read(text: str) -> Finding | None:
    praise, complaint = _PRAISE.search(text), _COMPLAINT.search(text)
    if complaint and not praise:
        return Finding(-1, f"the reply says {complaint.group(0)!r}")
    if praise and not complaint and not _WISH.search(text):
        return Finding(1, f"the reply says {praise.group(0)!r}")
    return None
