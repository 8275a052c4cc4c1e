"""The teacher's scores of named ids, and of a response in pieces, against the real model's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from processors.evaluators.prompt_scores import score_response
from processors.evaluators.server import ModelServer
from schemas.arrays import unpack_floats, unpack_ids
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import answered, evaluate, evaluators, server
from tests.processors.test_teacher import HINT, QUESTION, TOLERANCE, sampled

pytestmark = [pytest.mark.stack, pytest.mark.vllm, pytest.mark.slow]

K = 4


async def test_the_policys_own_likeliest_tokens_are_scored_in_every_place(
    migrated_database_url: str, vllm_server_f32: str, model_dir: Path
) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    turn = await sampled(vllm_server_f32, QUESTION, max_tokens=12)
    hint = {"patterns": [r"(Answer in one .*words\.)"], "votes": 0}
    recording = Recording(migrated_database_url, recipe_named("opd-topk", {"hint": hint}))
    recording.record(*answered("t", reply=HINT, **turn))
    await evaluate(evaluators(teacher=vllm_server_f32), recording, seconds=240)
    hinted, ids, values, student_k, topk_ids = recording.one(
        "SELECT hinted_prompt_ids, student_ids, student_logprobs, student_k, topk_ids FROM teacher_scores"
    )
    assert student_k == K
    prompt, response = unpack_ids(hinted).tolist(), turn["tokens"].response_ids
    ids_TJ, values_TJ = unpack_ids(ids).reshape(-1, K), unpack_floats(values).reshape(-1, K)

    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)

    def true_TV(before: list[int]) -> Any:
        with torch.no_grad():
            logits = model(torch.tensor([before + response])).logits[0, len(before) - 1 : -1]
        return torch.log_softmax(logits.double(), dim=-1)

    own_TK = torch.topk(true_TV(turn["tokens"].prompt_ids), K, dim=-1).indices.numpy()
    assert (ids_TJ == own_TK).mean() > 0.9, "two that are equally likely may change places"
    assert np.abs(values_TJ - np.take_along_axis(true_TV(prompt).numpy(), ids_TJ, axis=1)).max() < TOLERANCE
    likeliest_TK = unpack_ids(topk_ids).reshape(len(response), -1)
    assert not (ids_TJ[:, :, None] == likeliest_TK[:, None, :]).any(axis=2).all(), "some had to be asked for by name"
    assert recording.sample("t")[0] == "ready"


async def test_a_response_in_pieces_has_the_scores_that_it_has_whole(vllm_server_f32: str) -> None:
    turn = await sampled(vllm_server_f32, QUESTION, max_tokens=24)
    prompt, response = turn["tokens"].prompt_ids, turn["tokens"].response_ids
    async with aiohttp.ClientSession() as http:
        teacher = ModelServer(server(vllm_server_f32), http)
        whole = await score_response(teacher, prompt, response, top_k=K)
        parts = await score_response(teacher, prompt, response, top_k=K, chunk=7)
    assert np.abs(whole.logprobs - parts.logprobs).max() < 1e-5
    assert np.abs(whole.topk_logprobs - parts.topk_logprobs).max() < 1e-5
    assert (whole.topk_ids == parts.topk_ids).mean() > 0.95
