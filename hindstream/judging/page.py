"""The part of docs/judges.md that is made from the prompts: `python -m hindstream.judging.page` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from processors.evaluators.prompts import LABELS, Purpose, instruction_and_question
from processors.evaluators.quality import Pair, pairs
from schemas.events import NextStateKind

PAGE = Path(__file__).parents[2] / "docs/judges.md"
BEGIN, END = "<!-- made from the prompts: begin -->", "<!-- made from the prompts: end -->"

KINDS: dict[NextStateKind, str] = {
    "user_reply": "A user's reply",
    "tool_result": "A tool's result",
    "terminal_output": "A terminal's output",
    "gui_change": "A change of a window",
    "test_verdict": "Tests",
}

HINTS: dict[NextStateKind, tuple[tuple[str, str], tuple[str, str]]] = {
    "user_reply": (
        ("user_reply-bad-09", "HINT: Answer in a single sentence."),
        ("user_reply-good-01", "NONE"),
    ),
    "tool_result": (
        ("tool_result-bad-02", "HINT: Give the day as a date, not as the name of a weekday."),
        ("tool_result-neutral-01", "NONE"),
    ),
    "terminal_output": (
        ("terminal_output-bad-02", "HINT: List the folder first to see what the configuration file is called."),
        ("terminal_output-good-01", "NONE"),
    ),
    "gui_change": (
        ("gui_change-bad-06", "HINT: Click into the field City before you type the name of the city."),
        ("gui_change-neutral-01", "NONE"),
    ),
    "test_verdict": (
        ("test_verdict-bad-02", "HINT: Look at how a half is rounded, which the test for halves expects to go up."),
        ("test_verdict-neutral-01", "NONE"),
    ),
}
"""A pair with something to learn, and one without: what a hint giver should answer."""


def made() -> str:
    """Every prompt, with an example of each outcome."""
    by_id = {pair.id: pair for pair in pairs()}
    return "\n".join(line for kind in KINDS for line in _kind(kind, by_id))


def page_with(made: str, page: str) -> str:
    """`page` with what stands between the marks made anew.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def _kind(kind: NextStateKind, by_id: dict[str, Pair]) -> Iterator[str]:
    yield from (f"### {KINDS[kind]} (`{kind}`)", "")
    purposes: tuple[Purpose, ...] = ("reward", "hint")
    for purpose in purposes:
        instruction, question = instruction_and_question(purpose, kind)
        file = f"processors/evaluators/prompts/{purpose}_{kind}.txt"
        yield from (f"The {purpose}'s prompt, `{file}`:", "", "```text", instruction, "---", question, "```", "")
        yield from ("| asked | answered | what came then | right answer |", "|---|---|---|---|")
        if purpose == "reward":
            for label in LABELS:
                yield _row(by_id[f"{kind}-{label}-01"], label)
        else:
            for pair_id, answer in HINTS[kind]:
                yield _row(by_id[pair_id], answer)
        yield ""


def _row(pair: Pair, answer: str) -> str:
    answered = f"{pair.call.name} {pair.call.arguments}" if pair.call else pair.answered
    facts = [f"[verdict {pair.verdict:g}]" if pair.verdict is not None else ""]
    facts.append(f"[exit code {pair.exit_code}]" if pair.exit_code is not None else "")
    observed = " ".join([*(fact for fact in facts if fact), pair.observed])
    return f"| {_cell(pair.asked)} | {_cell(answered)} | {_cell(observed)} | `{answer}` |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", "<br>")


if __name__ == "__main__":
    PAGE.write_text(page_with(made(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
