"""Token ids of turns that are known as text alone: made by the tokenizer and the chat template of a model's directory.

The same text gives the same ids, today and in a rebuild. They are not the tokens that anybody sampled, so no recipe may
use log-probs beside them: see `batch.tokens` of a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.chat import Message
from schemas.digests import digest_of, sha256_hex

_FILES = (
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
)
"""What the ids depend on; those that a model has."""

_TODAY = datetime(2024, 7, 26, tzinfo=UTC)
"""Some templates write the day into the system message. A rebuild on another day must make the same ids, so it is
always this one, which those templates take where nobody tells them."""

_PROBE = "hindstream_probe"


class NotTokenised(ValueError):
    """A turn's text makes no tokens to train. `reason` is a drop reason of the contract."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class TurnTokens:
    """int32. `response_ids` ends with the token that ends a turn, unless the answer was cut off."""

    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]


class ChatTokens:
    """The tokenizer and the chat template of a model, read when they are first needed.

    Args:
        directory: of HuggingFace's form; no network is touched.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that the ids depend on: equal ones make equal ids of equal text."""
        paths = [self._directory / name for name in _FILES]
        return digest_of([[path.name, sha256_hex(path.read_bytes())] for path in paths if path.is_file()])

    def check(self) -> None:
        """Read it.

        Raises:
            OSError, ValueError: the directory holds no tokenizer, or no chat template.
        """
        self.turn([{"role": "user", "content": "?"}], [], {"role": "assistant", "content": "!"})

    def turn(
        self, messages: list[Message], tools: list[dict[str, Any]], answer: Message, *, whole: bool = True
    ) -> TurnTokens:
        """The ids of a request's messages (`schemas.chat.prompt_of`) and of their answer (`schemas.chat.answer_of`).

        The prompt is what a server would have rendered; the response is what follows it up to and with the token that
        ends the turn, so what a template writes after that (a line's end) is no part of it. `whole`: the answer ended
        of itself; one that was cut off has no such token.

        Raises:
            NotTokenised: an image, a call or a role that the template does not write, an empty or too long turn.
            OSError, ValueError: the directory holds no tokenizer.
        """
        sent = [_plain(message, place) for place, message in enumerate(messages)]
        said = _plain(answer, len(messages))
        if not said["content"].strip() and not said.get("tool_calls") and not said.get("reasoning_content"):
            raise NotTokenised("no_tokens", "the answer has no text")
        if any(message.get("tool_calls") for message in (*sent, said)) and not self._writes_calls:
            raise NotTokenised("not_renderable", "the policy's chat template does not write tool calls")
        prompt = self._render(sent, tools, answered=False)
        full = self._render([*sent, said], tools, answered=True)
        if not full.startswith(prompt):
            raise NotTokenised("not_renderable", "the policy's chat template writes the prompt otherwise once answered")
        prompt_ids, full_ids = self.ids(prompt), self.ids(full)
        rest = full_ids[len(prompt_ids) :]
        if full_ids[: len(prompt_ids)] != prompt_ids:
            # A token reaches over the border, which no engine samples: the prompt's ids were fixed before the answer.
            rest = self.ids(full[len(prompt) :])
        response_ids = self._up_to_the_end(rest, whole=whole)
        if not response_ids or not prompt_ids:
            raise NotTokenised("no_tokens", f"{len(prompt_ids)} prompt ids, {len(response_ids)} response ids")
        length = len(prompt_ids) + len(response_ids)
        if self._longest is not None and length > self._longest:
            raise NotTokenised("not_renderable", f"{length} tokens, and the policy reads {self._longest} at most")
        return TurnTokens(np.array(prompt_ids, np.int32), np.array(response_ids, np.int32))

    def _up_to_the_end(self, rest: list[int], *, whole: bool) -> list[int]:
        place = next((place for place, token in enumerate(rest) if token in self._ends), None)
        if place is None:
            raise NotTokenised("not_renderable", "the policy's chat template ends an answer with no end-of-turn token")
        if str(self._tokenizer.decode(rest[place + 1 :])).strip():
            raise NotTokenised("not_renderable", "an end-of-turn token stands in the middle of the answer")
        return rest[: place + 1] if whole else rest[:place]

    def _render(self, messages: list[Message], tools: list[dict[str, Any]], *, answered: bool) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=tools or None,
                    add_generation_prompt=not answered,
                    tokenize=False,
                    strftime_now=_TODAY.strftime,
                )
            )
        except Exception as err:  # a template is a program of its own and fails as it likes
            raise NotTokenised(
                "not_renderable", f"the policy's chat template fails: {str(err) or type(err).__name__}"
            ) from err

    def ids(self, text: str) -> list[int]:
        """The ids of a text as it stands; special tokens in it are those tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    @cached_property
    def size(self) -> int:
        """How many ids the tokenizer has."""
        return len(self._tokenizer)

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """The texts of the tokens that were added to its vocabulary, by id."""
        added: dict[str, int] = self._tokenizer.get_added_vocab()
        return tuple(sorted(added, key=lambda text: added[text]))

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer  # seconds to import, and only recipes of text need it

        tokenizer: Any = AutoTokenizer.from_pretrained(self._directory, local_files_only=True)
        if not tokenizer.chat_template:
            raise ValueError(f"{self._directory} has no chat template, so text makes no tokens")
        return tokenizer

    @cached_property
    def _ends(self) -> frozenset[int]:
        """Ids at which a server stops: the tokenizer's end of text, and what the generation config adds."""
        named = _json(self._directory / "generation_config.json").get("eos_token_id")
        ids = named if isinstance(named, list) else [named]
        return frozenset(int(one) for one in (*ids, self._tokenizer.eos_token_id) if one is not None)

    @cached_property
    def _longest(self) -> int | None:
        """Tokens that the model's positions reach."""
        config = _json(self._directory / "config.json")
        found = config.get("max_position_embeddings", config.get("text_config", {}).get("max_position_embeddings"))
        return None if found is None else int(found)

    @cached_property
    def _writes_calls(self) -> bool:
        call = {"type": "function", "id": "call00001", "function": {"name": _PROBE, "arguments": {"x": 1}}}
        asked = {"role": "user", "content": "?"}
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        tool = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {"type": "object"}}}
        try:
            # The tool alone is written by some templates that leave its calls out.
            return self._render([asked, called], [tool], answered=True).count(_PROBE) > self._render(
                [asked], [tool], answered=False
            ).count(_PROBE)
        except NotTokenised:
            return False


def _plain(message: Message, place: int) -> Message:
    """The message with its content as one text: templates join texts, and write a list as Python would print it."""
    content, role = message.get("content"), message.get("role")
    if content is None:
        return message | {"content": ""}
    if isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise NotTokenised("not_renderable", f"message {place} ({role}): its content is a {type(content).__name__}")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") in ("text", "input_text") else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise NotTokenised("not_renderable", f"message {place} ({role}) holds {kind}, and the policy reads text")
        texts.append(text)
    return message | {"content": "\n".join(texts)}


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = msgspec.json.decode(path.read_bytes())
    return found if isinstance(found, dict) else {}
