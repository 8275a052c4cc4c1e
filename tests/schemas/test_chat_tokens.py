"""Text becomes the ids that a server would have read and an engine would have sampled, or there is a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.chat import answer_of, prompt_of
from schemas.chat_tokens import ChatTokens, NotTokenised

ASKED = [{"role": "user", "content": "Hi"}]
SAID = {"role": "assistant", "content": "Hello."}
CALL = {"id": "a", "name": "find", "arguments": '{"q": "x"}'}
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def with_template(model_dir: Path, tmp_path: Path) -> Callable[..., ChatTokens]:
    """SmolLM2's tokenizer with another chat template or configuration."""

    def make(template: str = PLAIN, **config: Any) -> ChatTokens:
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(model_dir / name, tmp_path / name)
        (tmp_path / "chat_template.jinja").write_text(template)
        plain = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(plain | config))
        return ChatTokens(tmp_path)

    return make


def decoded(chat: ChatTokens, ids: Any) -> str:
    return str(chat._tokenizer.decode(ids))


def reason(chat: ChatTokens, messages: list[dict[str, Any]], answer: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(NotTokenised) as raised:
        chat.turn(messages, [], answer)
    return raised.value.reason, str(raised.value)


def test_the_response_is_the_answer_and_the_token_that_ends_it(with_template: Callable[..., ChatTokens]) -> None:
    chat = with_template()
    found = chat.turn(ASKED, [], SAID)
    assert decoded(chat, found.prompt_ids) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert decoded(chat, found.response_ids) == "Hello.<|im_end|>"
    cut = chat.turn(ASKED, [], SAID, whole=False)
    assert decoded(chat, cut.response_ids) == "Hello."
    again = ChatTokens(chat._directory).turn(ASKED, [], SAID)
    assert again.prompt_ids.tolist() == found.prompt_ids.tolist()
    assert again.response_ids.tolist() == found.response_ids.tolist()


def test_an_answer_that_begins_with_white_space_changes_no_token_of_the_prompt(
    with_template: Callable[..., ChatTokens],
) -> None:
    chat = with_template()
    found = chat.turn(ASKED, [], {"role": "assistant", "content": "\n\nHello."})
    assert found.prompt_ids.tolist() == chat.turn(ASKED, [], SAID).prompt_ids.tolist()
    assert decoded(chat, found.response_ids) == "\n\nHello.<|im_end|>"


def test_tools_and_their_calls_are_as_the_template_writes_them(model_dir: Path) -> None:
    chat = ChatTokens(model_dir)
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "function": {"name": "find", "arguments": '{"q": "x"}'}}],
    }
    messages = prompt_of([*ASKED, called, {"role": "tool", "tool_call_id": "a", "content": "nothing"}])
    found = chat.turn(messages, [], answer_of({"content": None, "tool_calls": [CALL]}))
    written = '<tool_call>{"name": "find", "arguments": {"q": "x"}}</tool_call><|im_end|>'
    assert decoded(chat, found.response_ids) == written
    assert written in decoded(chat, found.prompt_ids)
    assert "<|im_start|>tool\nnothing<|im_end|>" in decoded(chat, found.prompt_ids)


def test_texts_in_parts_are_one_text(with_template: Callable[..., ChatTokens]) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]
    chat = with_template()
    whole = chat.turn([{"role": "user", "content": "Hi\nyou"}], [], SAID)
    assert chat.turn([{"role": "user", "content": parts}], [], SAID).prompt_ids.tolist() == whole.prompt_ids.tolist()


@pytest.mark.parametrize(
    ("messages", "answer", "expected"),
    [
        ([{"role": "user", "content": [{"type": "image_url"}]}], SAID, ("not_renderable", "holds image_url")),
        ([{"role": "user", "content": 7}], SAID, ("not_renderable", "its content is a int")),
        (ASKED, {"role": "assistant", "content": " "}, ("no_tokens", "the answer has no text")),
        (ASKED, {"role": "assistant", "content": "a<|im_end|>b"}, ("not_renderable", "in the middle of the answer")),
        (ASKED, answer_of({"tool_calls": [CALL]}), ("not_renderable", "does not write tool calls")),
        ([], SAID, ("not_renderable", "chat template fails")),
        ([{"role": "user", "content": "word " * 60}], SAID, ("not_renderable", "the policy reads 50 at most")),
    ],
)
def test_what_makes_no_tokens_says_why(
    with_template: Callable[..., ChatTokens],
    messages: list[dict[str, Any]],
    answer: dict[str, Any],
    expected: tuple[str, str],
) -> None:
    found = reason(with_template(max_position_embeddings=50), messages, answer)
    assert (found[0], expected[1] in found[1]) == (expected[0], True), found


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (PLAIN.replace("<|im_end|>\n{% endfor %}", "\n{% endfor %}"), "no end-of-turn token"),
        (PLAIN + "{{ raise_exception('no') if messages | length > 1 }}", "chat template fails: no"),
        ("{{ messages | length }}" + PLAIN, "otherwise once answered"),
    ],
)
def test_a_template_that_cannot_be_trained_on_says_why(
    with_template: Callable[..., ChatTokens], template: str, words: str
) -> None:
    found = reason(with_template(template), ASKED, SAID)
    assert found[0] == "not_renderable"
    assert words in found[1]


def test_no_day_is_written_but_one(with_template: Callable[..., ChatTokens]) -> None:
    chat = with_template("{{ strftime_now('%d %b %Y') }}" + PLAIN)
    assert decoded(chat, chat.turn(ASKED, [], SAID).prompt_ids).startswith("26 Jul 2024")


def test_the_fingerprint_is_of_all_that_the_ids_depend_on(with_template: Callable[..., ChatTokens]) -> None:
    first = with_template().fingerprint
    assert with_template().fingerprint == first
    assert with_template(hidden_size=7).fingerprint == first
    assert with_template(PLAIN + " ").fingerprint != first


def test_a_directory_without_a_chat_template_is_refused(with_template: Callable[..., ChatTokens]) -> None:
    chat = with_template("")
    with pytest.raises(ValueError, match="has no chat template"):
        chat.check()
