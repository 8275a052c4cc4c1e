"""The form of a whole answer, learnt from the server: which fields a chat.completion has beside its text. Pure.

Where no parser has a say, the text of the engine's tokens is the answer, and `derender` would only put it into this
form: a request more for each answer. So it is asked once in a while, and in between its form is filled in here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from producers.gateway.answers import Answer, engine_outcome, usage_of

_LEARNT_FOR_S = 300.0
"""The server may be replaced by one with another form."""


@dataclass(frozen=True)
class _Form:
    completion: dict[str, Any]
    choice: dict[str, Any]
    message: dict[str, Any]
    until: float


class Forms:
    """The forms of one server, by model."""

    def __init__(self) -> None:
        self._forms: dict[str, _Form] = {}

    def learn(self, completion: dict[str, Any]) -> None:
        """Take the form of what derender said; nothing is learnt where it is more than text."""
        choice = (completion.get("choices") or [{}])[0]
        message = choice.get("message") or {}
        if message.get("role") == "assistant" and not message.get("tool_calls") and not choice.get("logprobs"):
            until = time.monotonic() + _LEARNT_FOR_S
            self._forms[completion["model"]] = _Form(dict(completion), dict(choice), dict(message), until)

    def known(self, body: dict[str, Any]) -> bool:
        """Whether the answer to this request, in whose text no parser has a say, needs nothing but a form that is
        known."""
        form = self._forms.get(body["model"])
        asks_more = body.get("logprobs") or body.get("continue_final_message") or body.get("return_token_ids")
        return (
            form is not None
            and time.monotonic() < form.until
            and not asks_more
            and bool(body.get("add_generation_prompt", True))
        )

    def filled(self, body: dict[str, Any], prompt: dict[str, Any], generated: dict[str, Any]) -> Answer:
        """The answer from what render and generate (with text) said.

        Raises:
            KeyError, IndexError, TypeError, AttributeError, ValueError: one of them is not what vLLM says.
        """
        form = self._forms[body["model"]]
        choices, outcomes = [], []
        for index, choice in enumerate(generated["choices"]):
            shown = {
                **form.choice,
                "index": index,
                "message": {**form.message, "content": choice["text"]},
                "finish_reason": choice["finish_reason"],
                "stop_reason": choice.get("stop_reason"),
            }
            choices.append(shown)
            outcomes.append(engine_outcome(prompt, choice, shown))
        made = sum(len(choice["token_ids"]) for choice in generated["choices"])
        completion = {
            **form.completion,
            "id": prompt.get("request_id") or form.completion.get("id"),
            "created": int(time.time()),
            "choices": choices,
            "usage": {**(form.completion.get("usage") or {}), **usage_of(len(prompt["token_ids"]), made)},
        }
        return Answer(completion=completion, outcomes=outcomes)
