"""An answer as the caller gets it and as it is recorded, from what vLLM says in its three steps."""

from __future__ import annotations

from typing import Any

import pytest

from producers.gateway.answers import with_tokens, without_last_token
from schemas.events import VersionSpan

PROMPT = {"token_ids": [1, 2, 3]}


def generated(ids: list[int], **more: Any) -> dict[str, Any]:
    content = [{"token_id": i, "logprob": -0.5} for i in ids]
    choice = {"token_ids": ids, "finish_reason": "stop", "stop_reason": None, "logprobs": {"content": content}, **more}
    return {"choices": [choice]}


def completion(content: str | None, **message: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop", "logprobs": {}}
    return {"choices": [choice], "usage": {"prompt_tokens": 0}}


@pytest.mark.parametrize(
    ("more", "body", "shown"),
    [
        ({}, {}, [5, 6]),  # the end of the turn
        ({"stop_reason": 7}, {}, [5, 6]),  # a stop token that the caller named
        ({"stop_reason": 7}, {"include_stop_str_in_output": True}, [5, 6, 7]),
        ({"stop_reason": "x"}, {}, [5, 6, 7]),  # a stop string: the text is cut instead
        ({"finish_reason": "length"}, {}, [5, 6, 7]),
    ],
)
def test_the_token_that_ends_an_answer_is_recorded_and_not_shown(
    more: dict[str, Any], body: dict[str, Any], shown: list[int]
) -> None:
    said = generated([5, 6, 7], **more)
    assert without_last_token(body, said)["choices"][0]["token_ids"] == shown
    assert with_tokens(body, PROMPT, said, completion("ab")).outcomes[0].tokens.response_ids == [5, 6, 7]


def test_an_answer_that_is_its_end_alone_is_empty() -> None:
    said = generated([7])
    assert without_last_token({}, said) == said
    answer = with_tokens({}, PROMPT, said, completion("<|im_end|>"))
    assert answer.outcomes[0].message["content"] == ""
    assert answer.outcomes[0].tokens.response_ids == [7]
    assert answer.completion["usage"] == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


def test_text_ends_before_the_stop_string_that_ended_it() -> None:
    said = generated([5, 6], stop_reason="x")
    assert with_tokens({}, PROMPT, said, completion("a xx")).outcomes[0].message["content"] == "a x"
    kept = with_tokens({"include_stop_str_in_output": True}, PROMPT, said, completion("a x"))
    assert kept.outcomes[0].message["content"] == "a x"


@pytest.mark.parametrize(
    "content",
    [
        [{"token_id": 5, "logprob": -1.0}],
        [{"token_id": 5, "logprob": -1.0}, {"token_id": 9, "logprob": -1.0}],
        [{"token_id": 5, "logprob": -1.0}, {"token_id": 6, "logprob": None}],
        [{"token_id": 5, "logprob": -1.0}, {"token_id": 6, "logprob": float("-inf")}],
        [{"token_id": 5, "logprob": -1.0}, {"token_id": 6, "logprob": -9999.0}],  # how vLLM writes "none"
        None,
    ],
)
def test_log_probs_that_do_not_fit_the_tokens_are_none_and_never_padded(content: Any) -> None:
    said = generated([5, 6], logprobs={"content": content})
    tokens = with_tokens({}, PROMPT, said, completion("ab")).outcomes[0].tokens
    assert (tokens.response_ids, tokens.response_logprobs) == ([5, 6], [])


def test_each_span_of_tokens_names_its_version_or_none() -> None:
    versions = [
        {"version": "default", "start": 0, "end": 1},
        {"version": "12", "start": 1, "end": 2},
        {"version": "-1", "start": 2, "end": 3},
    ]
    outcome = with_tokens({}, PROMPT, generated([5, 6, 7], weight_versions=versions), completion("ab")).outcomes[0]
    assert outcome.spans == [
        VersionSpan(version=None, start=0, end=1),
        VersionSpan(version=12, start=1, end=2),
        VersionSpan(version=None, start=2, end=3),
    ]


def test_a_required_tool_call_ends_with_tool_calls() -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]
    answer = with_tokens({"tool_choice": "required"}, PROMPT, generated([5, 7]), completion("", tool_calls=calls))
    assert answer.outcomes[0].finish_reason == answer.completion["choices"][0]["finish_reason"] == "tool_calls"


def test_a_reason_that_nobody_knows_is_no_whole_answer() -> None:
    said = completion("ab")
    said["choices"][0]["finish_reason"] = "content_filter"
    assert with_tokens({}, PROMPT, generated([5, 6]), said).outcomes[0].finish_reason == "error"
