"""Long responses in pieces, prefixes that are computed once, questions that are asked once, and what that must not
change: the scores."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.evaluators.prompt_scores import pieces, score_response
from processors.evaluators.score_reading import TeacherFailed
from processors.evaluators.server import ModelServer, TransientFault
from tests.processors.evaluating import server
from tests.processors.teachers import BLOCK, NewerRunner, log_prob

PROMPT = list(range(10, 31))
RESPONSE = list(range(40, 90))
K = 4


async def scored(teacher: NewerRunner, prompt: list[int], response: list[int], chunk: int = 4096, **more: Any) -> Any:
    async with aiohttp.ClientSession() as http:
        return await score_response(
            ModelServer(server(teacher.url, chunk_tokens=chunk), http), prompt, response, top_k=K, **more
        )


def truth(prompt: list[int], response: list[int]) -> list[float]:
    return [log_prob(len(prompt) + place, token) for place, token in enumerate(response)]


@given(start=st.integers(1, 5000), length=st.integers(1, 3000), chunk=st.integers(1, 500))
def test_pieces_cover_every_place_once_and_end_inside_a_block(start: int, length: int, chunk: int) -> None:
    found = list(pieces(start, start + length, chunk))
    assert [place for begin, end in found for place in range(begin, end)] == list(range(start, start + length))
    assert all(end % 2 == 1 for _, end in found[:-1])
    assert all(end - begin <= chunk + 1 for begin, end in found)


@pytest.mark.parametrize("chunk", [1, 7, 8, 49, 50, 4096])
async def test_a_piece_computes_little_more_than_itself_and_its_scores_are_those_of_the_whole(chunk: int) -> None:
    at_ids = np.arange(len(RESPONSE) * 3, dtype=np.int32).reshape(-1, 3)
    async with NewerRunner().running() as teacher:
        found = await scored(teacher, PROMPT, RESPONSE, chunk, at_ids=at_ids)
        assert np.allclose(found.logprobs, truth(PROMPT, RESPONSE))
        named = [[log_prob(len(PROMPT) + place, one) for one in row] for place, row in enumerate(at_ids.tolist())]
        assert np.allclose(found.at_ids, named)
        assert found.topk_ids.shape == found.topk_logprobs.shape == (len(RESPONSE), K)
        assert all(reads for _, _, reads in teacher.asked)
        assert max(computed for _, computed, _ in teacher.asked[1:] or [(0, 0, True)]) <= chunk + 1 + BLOCK
        assert max(teacher.places_told[1:], default=0) <= chunk + 1 + BLOCK, "what an answer holds is bounded too"


async def test_what_hints_share_is_computed_once() -> None:
    async with NewerRunner().running() as teacher:
        for hint in ([1], [2, 2], [3]):
            prompt = [*PROMPT, *hint]
            assert np.allclose((await scored(teacher, prompt, RESPONSE)).logprobs, truth(prompt, RESPONSE))
        shared = len(PROMPT) // BLOCK * BLOCK
        assert [whole - computed for whole, computed, _ in teacher.asked] == [0, shared, shared]


async def test_a_cache_that_reaches_into_the_response_is_not_read() -> None:
    async with NewerRunner().running() as teacher:
        first, again = [await scored(teacher, PROMPT, RESPONSE) for _ in range(2)]
        assert np.array_equal(first.logprobs, again.logprobs)
        assert [reads for _, _, reads in teacher.asked] == [True, True, False]


async def test_scores_of_named_ids_that_a_server_lost_are_asked_for_without_its_cache() -> None:
    at_ids = np.full((len(RESPONSE), 1), 7, np.int32)
    async with NewerRunner(loses=True).running() as teacher:
        found = await scored(teacher, PROMPT, RESPONSE, at_ids=at_ids)
    assert np.allclose(found.at_ids[:, 0], [log_prob(len(PROMPT) + place, 7) for place in range(len(RESPONSE))])


async def test_weights_that_change_between_two_pieces_give_no_scores() -> None:
    async with NewerRunner("1", "1", "2").running() as teacher:
        with pytest.raises(TransientFault, match="changed while one response was scored: versions 1, 2"):
            await scored(teacher, PROMPT, RESPONSE, 10)


async def test_too_long_names_both_lengths() -> None:
    async with NewerRunner(max_model_len=60).running() as teacher:
        with pytest.raises(
            TeacherFailed, match=r"too_long: 21 prompt and 50 response tokens are 71, and policy at .* takes 59 at most"
        ):
            await scored(teacher, PROMPT, RESPONSE)
        assert await asyncio.wait_for(scored(teacher, PROMPT, RESPONSE[:38]), 60)
