"""The model directory: what vLLM and the learner start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from hindstream.stack.model import END_OF_TURN_ID, patched_template

HELLO = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Bye"},
]


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_dir)


def test_weights_are_bfloat16_of_the_right_size(model_dir: Path) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    with safe_open(model_dir / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in tensors.values()) == 134_515_008


def test_an_answer_ends_at_the_end_of_its_turn(model_dir: Path, tokenizer: Any) -> None:
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == END_OF_TURN_ID
    assert tokenizer.convert_ids_to_tokens(END_OF_TURN_ID) == "<|im_end|>"
    for name in ("config.json", "generation_config.json"):
        assert json.loads((model_dir / name).read_text())["eos_token_id"] == END_OF_TURN_ID


def test_messages_with_text_render_as_the_model_was_trained(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', {"city": "Rome"}])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_tool_calls_and_messages_without_text_render(
    tokenizer: Any, arguments: object, content: dict[str, Any]
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    called = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    assert f"<|im_start|>assistant\n{called}<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n" in text


def test_a_template_that_the_patch_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="template has changed"):
        patched_template("{{ messages }}")
