"""Whatever JSON a caller sends in the dialects that are translated: translated or refused, never a fault of ours."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.gateway import messages_request, responses_request
from producers.gateway.blocks import Blocks
from producers.gateway.completions import prompts_of
from producers.gateway.refusal import BadRequest

WORDS = ("type", "role", "content", "text", "source", "input", "id", "name", "format", "user_id", "effort", "arguments")
KINDS = ["user", "assistant", "text", "image", "tool_result", "tool_use", "thinking", "document", "base64", "message"]
KINDS += ["reasoning", "function_call", "function", "function_call_output", "input_text", "input_image", "json_schema"]
LEAF = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([*KINDS, "tool", "any", "auto"])
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)
BLOCK = st.builds(
    lambda kind, rest: {**rest, "type": kind}, st.sampled_from(KINDS), st.dictionaries(st.sampled_from(WORDS), JSON)
)
ROLE = st.sampled_from(["user", "assistant", "system", "developer"])
MESSAGE = st.fixed_dictionaries({"role": ROLE, "content": st.lists(BLOCK, max_size=2) | JSON})
PLAIN = st.just([{"role": "user", "content": "Hi"}])
MESSAGES = PLAIN | st.lists(MESSAGE | BLOCK, min_size=1, max_size=2)
FIELDS = sorted({*messages_request._OWN, *responses_request._OWN, "stream", "prompt"} - {"messages", "input"})
BODIES = st.builds(
    lambda messages, rest: {"messages": messages, "input": messages, **rest},
    MESSAGES,
    st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(BLOCK, max_size=2), max_size=2),
)


@settings(max_examples=400, deadline=None)
@given(BODIES)
def test_a_request_is_translated_or_refused(body: dict[str, Any]) -> None:
    for translate in (
        lambda: messages_request.to_chat({"max_tokens": 1, **body}),
        lambda: responses_request.to_chat(body, []),
        lambda: prompts_of(body),
    ):
        with contextlib.suppress(BadRequest):
            assert translate()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "content": st.none() | st.text(max_size=3),
                "reasoning": st.none() | st.text(max_size=3),
                "tool_calls": st.lists(
                    st.fixed_dictionaries(
                        {
                            "index": st.integers(0, 2),
                            "function": st.fixed_dictionaries({"arguments": st.text(max_size=3)}),
                        }
                    ),
                    max_size=3,
                ),
            },
        ),
        max_size=8,
    )
)
def test_every_piece_of_an_answer_is_in_one_block_that_opens_and_closes_once(deltas: list[dict[str, Any]]) -> None:
    blocks, steps = Blocks(), []
    for delta in deltas:
        steps += blocks.take({"choices": [{"index": 0, "delta": delta}]})
    steps += blocks.end()
    for kind, field in (("text", "content"), ("reasoning", "reasoning")):
        said = "".join(delta.get(field) or "" for delta in deltas)
        assert "".join(block.text for block in blocks.all if block.kind == kind) == said
    for index in range(3):
        pieces = [c["function"]["arguments"] for d in deltas for c in d.get("tool_calls") or [] if c["index"] == index]
        if pieces:
            assert "".join(pieces) in [block.text for block in blocks.all if block.kind == "tool"]
    numbers = [block.number for block in blocks.all]
    assert numbers == list(range(len(numbers)))
    for verb in ("open", "close"):
        assert sorted(step.block.number for step in steps if step.verb == verb) == numbers
    assert all(block.text == "".join(s.piece for s in steps if s.block is block) for block in blocks.all)
