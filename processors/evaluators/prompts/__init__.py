"""Questions to judges and hint givers: one short text for each signal and kind of next state, named by its digest.

A file `SIGNAL_KIND.txt` holds the instruction, a line `---`, and what the model is shown. Changing a word changes the
digest, which every vote keeps, so that two runs show whether they asked the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, Literal

from processors.evaluators.inputs import NextState, Turn
from schemas.digests import digest_of
from schemas.events import NextStateKind

Purpose = Literal["reward", "hint"]

LABELS = {"good": 1, "bad": -1, "neutral": 0}
"""The declared answers of a judge and their scores."""

ANSWER_FORMS: dict[Purpose, tuple[str, str]] = {
    "reward": (
        "Answer with one word: good, bad or neutral.",
        "End with a line that is exactly one of: VERDICT: good, VERDICT: bad, VERDICT: neutral.",
    ),
    "hint": (
        "Answer with HINT: and the hint on one line, or with the one word NONE.",
        "Answer with HINT: and the hint on one line, or with the one word NONE.",
    ),
}
"""How to answer: where the server holds the model to the declared answers, and where it does not."""

_PROMINENCE: tuple[NextStateKind, ...] = (
    "user_reply",
    "test_verdict",
    "terminal_output",
    "gui_change",
    "tool_result",
)
"""Of several next states the first of these kinds chooses the question; all of them are shown."""


@dataclass(frozen=True)
class Prompt:
    """One question, ready to send in either form."""

    digest: str
    constrained: list[dict[str, str]]
    free: list[dict[str, str]]


def prompt_for(purpose: Purpose, turn: Turn, next_states: tuple[NextState, ...], *, characters: int) -> Prompt:
    """The question about `turn` and what answered it; each of the three texts gets a third of `characters`.

    Raises:
        ValueError: nothing answered the turn.
    """
    kinds = {state.kind for state in next_states}
    kind = next((kind for kind in _PROMINENCE if kind in kinds), None)
    if kind is None:
        raise ValueError(f"turn {turn.turn_id} has no next state to ask about")
    instruction, shown = instruction_and_question(purpose, kind)
    texts = {
        "asked": asked(turn.messages),
        "answered": answered(turn.response),
        "observed": "\n\n".join(_observed(state) for state in next_states),
    }
    question = Template(shown).substitute({name: clip(text, characters // 3) for name, text in texts.items()})
    forms = ANSWER_FORMS[purpose]
    constrained, free = (
        [{"role": "system", "content": f"{instruction}\n{form}"}, {"role": "user", "content": question}]
        for form in forms
    )
    return Prompt(digest_of([instruction, shown, *forms]), constrained, free)


def clip(text: str, characters: int) -> str:
    """`text`, or its beginning and end where it is longer, with a note of how much is left out between."""
    if len(text) <= characters:
        return text
    head = characters * 2 // 3
    tail = characters - head
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[len(text) - tail :]}"


def asked(messages: list[dict[str, Any]]) -> str:
    """The text of the last user message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return text_of(message.get("content"))
    return "(no user message)"


def answered(response: dict[str, Any]) -> str:
    """A response in words: its content, then each tool call with its raw arguments."""
    calls = [f"[call {call['name']} {call['arguments']}]" for call in response.get("tool_calls") or []]
    return "\n".join([part for part in (response.get("content"), *calls) if part]) or "(empty)"


def text_of(content: Any) -> str:
    """A message's content as text: itself, or the text parts of a list."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _observed(state: NextState) -> str:
    facts = [
        f"[{name} {value:g}]"
        for name, value in (("verdict", state.verdict), ("exit code", state.exit_code))
        if value is not None
    ]
    return "\n".join([*facts, state.content or "(empty)"])


@cache
def instruction_and_question(purpose: Purpose, kind: NextStateKind) -> tuple[str, str]:
    """The two parts of a prompt's file: the instruction, and what the model is shown, with `$names` to fill in."""
    text = (Path(__file__).parent / f"{purpose}_{kind}.txt").read_text(encoding="utf-8")
    instruction, shown = text.split("\n---\n")
    return instruction, shown.rstrip("\n")
