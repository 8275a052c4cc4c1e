"""Asking a model for votes, and reading its answers: only the declared answer counts.

A number in prose, a label inside a sentence, JSON that was cut off: all of them are invalid votes with their text
kept. Nothing is clamped to the scale and nothing is assumed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from processors.evaluators.answers import answer_digest, recorded_answer
from processors.evaluators.chat_requests import completion_body, completion_content
from processors.evaluators.once import asked_once
from processors.evaluators.prompts import LABELS, Prompt, Purpose
from processors.evaluators.queue import Signal
from processors.evaluators.refusing import Refuse
from processors.evaluators.server import ModelServer, Overloaded, PermanentFault, ServerFault, TransientFault
from processors.evaluators.votes import Vote
from processors.transactions import Transactions
from schemas.recipes import HintSpec, JudgeSpec

_VERDICT = re.compile(r"^VERDICT:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_HINT = re.compile(r"^HINT:", re.MULTILINE)
_NONE = re.compile(r"^NONE[ \t]*$", re.MULTILINE)

CHOICE: dict[str, Any] = {"choice": list(LABELS)}
"""Holds a judge to the labels."""
HINT_FORM: dict[str, Any] = {"regex": r"(NONE|HINT: [^\n]+)"}
"""Holds a hint giver to the two forms. The length is left to `max_tokens`: vLLM compiles a counted repetition such as
`{1,400}` for seconds, gives up after five, and answers 500."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of one vote's question: a text, or the fault that there is none. `cut`: it ran into `max_tokens`."""

    text: str | None = None
    cut: bool = False
    digest: str | None = None
    fault: ServerFault | None = None


def constraint_of(signal: Signal) -> dict[str, Any]:
    """What holds a judge's or hint giver's answer to the declared ones."""
    return CHOICE if signal == "reward" else HINT_FORM


def samplings(spec: JudgeSpec | HintSpec) -> list[dict[str, Any]]:
    """How each vote is sampled; vote number i has seed i."""
    return [
        {"temperature": spec.temperature, "max_tokens": spec.max_tokens, "seed": number} for number in range(spec.votes)
    ]


async def in_either_form(
    server: ModelServer,
    purpose: Purpose,
    prompt: Prompt,
    ask: Callable[[list[dict[str, str]], dict[str, Any] | None], Awaitable[Answer]],
) -> Answer:
    """What `ask` brings for `prompt`'s messages: held to the declared answers where the server can, else asked for the
    marker. A server that refuses the constraint once is not sent it again.

    Raises:
        ServerFault: no answer.
    """
    if server.constrains:
        try:
            return await ask(prompt.constrained, constraint_of(purpose))
        except PermanentFault as fault:
            if "structured_outputs" not in str(fault):
                raise
            server.constrains = False
    return await ask(prompt.free, None)


class Panel:
    """Asks one model server several times, each time with its own seed, and keeps what it answers. `replayed`: what was
    recorded counts first, whichever weight version answered."""

    def __init__(self, server: ModelServer, transactions: Transactions, *, replayed: bool = False) -> None:
        self.server = server
        self._transactions = transactions
        self._replayed = replayed

    async def ask(
        self,
        purpose: Purpose,
        prompt: Prompt,
        spec: JudgeSpec | HintSpec,
    ) -> list[Answer]:
        """One answer a vote, in order. A fault is an answer too and is not raised.

        Where only an answer that was not held to the declared ones is recorded, a replay takes that.

        Raises:
            Overloaded: the server has no room for at least one of them; those that it gave are kept.
        """

        async def one(sampling: dict[str, Any]) -> Answer:
            try:
                if self._replayed and (found := await self._recorded(purpose, prompt, sampling)) is not None:
                    return found
                return await in_either_form(
                    self.server, purpose, prompt, partial(self._ask, purpose, prompt.digest, sampling)
                )
            except ServerFault as fault:
                return Answer(fault=fault)

        answers = list(await asyncio.gather(*(one(sampling) for sampling in samplings(spec))))
        for answer in answers:
            if isinstance(answer.fault, Overloaded):
                raise answer.fault
        return answers

    async def _recorded(self, purpose: Purpose, prompt: Prompt, sampling: dict[str, Any]) -> Answer | None:
        for messages, constraint in ((prompt.constrained, constraint_of(purpose)), (prompt.free, None)):
            question = self._digest(purpose, prompt.digest, messages, sampling, constraint, None)
            if (found := await self._transactions.run(recorded_answer, question)) is not None:
                return read_answer(*found)
        return None

    async def _ask(
        self,
        purpose: Purpose,
        prompt_digest: str,
        sampling: dict[str, Any],
        messages: list[dict[str, str]],
        constraint: dict[str, Any] | None,
    ) -> Answer:
        def digest_at(version: str | None) -> str:
            return self._digest(purpose, prompt_digest, messages, sampling, constraint, version)

        async def digest_now() -> str:
            return digest_at(await self.server.version())

        async def pay(digest: str) -> tuple[dict[str, Any], str]:
            body = completion_body(self.server.model, messages, sampling, constraint)
            return completion_content(await self.server.post("/v1/chat/completions", body)), digest

        kept, digest = await asked_once(
            self._transactions, digest_now, pay, question=digest_at(None), purpose=purpose, model=self.server.model
        )
        return read_answer(kept, digest)

    def _digest(
        self,
        purpose: Purpose,
        prompt_digest: str,
        messages: list[dict[str, str]],
        sampling: dict[str, Any],
        constraint: dict[str, Any] | None,
        version: str | None,
    ) -> str:
        return answer_digest(
            purpose=purpose,
            model=self.server.model,
            version=version,
            prompt_digest=prompt_digest,
            rendered=[messages, constraint],
            sampling=sampling,
            vote=sampling["seed"],
        )


def read_answer(kept: dict[str, Any], digest: str) -> Answer:
    """A kept answer, whose key is `digest`."""
    return Answer(text=kept["content"] or "", cut=kept["finish_reason"] == "length", digest=digest)


def verdict_vote(answer: Answer, annotator: str, prompt_digest: str) -> Vote:
    """The vote of a judge's answer: the whole text is a label, or exactly one marked line holds one."""
    score, problem = (None, "cut off at max_tokens") if answer.cut else _read_verdict(answer.text or "")
    return _vote(answer, annotator, prompt_digest, score, problem)


def hint_vote(
    answer: Answer, annotator: str, prompt_digest: str, min_characters: int, refuse: Refuse | None = None
) -> Vote:
    """The vote of a hint giver's answer: +1 with the hint as explanation; 0 for NONE, or for a hint that is too short
    or refused, with the reason."""
    if answer.cut:
        return _vote(answer, annotator, prompt_digest, None, "cut off at max_tokens")
    text = (answer.text or "").strip()
    marks, nones = _HINT.findall(text), _NONE.findall(text)
    if not marks and len(nones) == 1 and text == "NONE":
        return _vote(answer, annotator, prompt_digest, 0, "no hint")
    if len(marks) != 1 or nones:
        return _vote(answer, annotator, prompt_digest, None, "neither NONE alone nor exactly one HINT:")
    hint = _HINT.split(text)[1].strip()
    if len(hint) < min_characters:
        return _vote(
            answer, annotator, prompt_digest, 0, f"too short: {len(hint)} characters, at least {min_characters}"
        )
    if refuse is not None and (why := refuse(hint)) is not None:
        return _vote(answer, annotator, prompt_digest, 0, why)
    return _vote(answer, annotator, prompt_digest, 1, hint)


def passing_fault(answers: list[Answer]) -> str | None:
    """What the first answer that may come at another try said; None where there is none such."""
    return next((str(one.fault) for one in answers if isinstance(one.fault, TransientFault)), None)


def _read_verdict(text: str) -> tuple[int | None, str]:
    bare = text.strip()
    if bare in LABELS:
        return LABELS[bare], bare
    marked = _VERDICT.findall(text)
    if len(marked) > 1:
        return None, f"{len(marked)} VERDICT lines"
    if not marked:
        return None, "no declared answer"
    label = marked[0]
    return (LABELS[label], label) if label in LABELS else (None, f"{label!r} is no declared answer")


def _vote(answer: Answer, annotator: str, prompt_digest: str, score: int | None, explanation: str) -> Vote:
    if answer.fault is not None:
        return Vote(
            status="error",
            annotator_kind="LLM",
            annotator=annotator,
            explanation=str(answer.fault),
            prompt_digest=prompt_digest,
        )
    return Vote(
        status="invalid" if score is None else "valid",
        annotator_kind="LLM",
        annotator=annotator,
        score=score,
        explanation=explanation,
        raw=answer.text,
        prompt_digest=prompt_digest,
        answer_digest=answer.digest,
    )
