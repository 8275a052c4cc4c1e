"""A teacher without a hint: it scores what was answered, text too, and the learner takes the scores of its own ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from learner.batches import Loaded, load_batch
from processors.batcher import next_micro_batch
from processors.evaluators.fingerprint import TokenizerMismatch
from schemas.chat_tokens import ChatTokens
from schemas.events import Response, SessionClosed, Tokens
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording, turn
from tests.processors.evaluating import balance, evaluate, evaluators

pytestmark = pytest.mark.stack

ASKED = [{"role": "user", "content": "Well?"}]
SAID = {"role": "assistant", "content": "Well."}
K = 8


def topk(place: int, token: int) -> dict[str, Any]:
    """The token that stands there is third; log-probs fall from -1 by half a nat."""
    others = [100 + place * 10 + rank for rank in range(1, K + 1)]
    ids = [*others[:2], token, *others[2 : K - 1]]
    return {str(one): {"rank": rank, "logprob": -0.5 - rank / 2} for rank, one in enumerate(ids, 1)}


class Teacher:
    """Scores any ids; `shift` makes its tokenizer another one, `more` its vocabulary larger."""

    def __init__(self, model: Path, shift: int = 0, more: int = 0) -> None:
        self._chat, self._shift = ChatTokens(model), shift
        self.vocabulary = self._chat.size + more
        self.asked: list[list[int]] = []
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Teacher]:
        app = web.Application()
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/inference/v1/generate", self._generate)
        async with TestServer(app) as started:
            self.url = str(started.make_url("")).rstrip("/")
            yield self

    async def _tokenize(self, request: web.Request) -> web.Response:
        ids = self._chat.ids((await request.json())["prompt"])
        return web.json_response({"tokens": [one + self._shift for one in ids]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = body["token_ids"]
        if "logprob_token_ids" in body["sampling_params"]:  # as vLLM says it of an id that is too high
            said = f"contain out-of-vocab token ids. Vocabulary size: {self.vocabulary}"
            return web.json_response({"error": {"message": said}}, status=400)
        if "prompt_logprob_token_ids" in body["sampling_params"]:  # as vLLM's older runner says it
            return web.json_response({"error": {"message": "requires the V2 model runner"}}, status=400)
        self.asked.append(ids)
        entries = [None, *(topk(place, one) for place, one in enumerate(ids[1:], 1))]
        return web.json_response({"choices": [{"weight_versions": []}], "prompt_logprobs": entries})


async def taught(url: str, model: Path, teacher: Teacher, **batch: Any) -> Recording:
    """A turn of text, one with tokens, one that no tokenizer can write."""
    recording = Recording(url, recipe_named("kd", {"batch": {"size": 2, **batch}}))
    text: dict[str, Any] = {"messages": ASKED, "tokens": Tokens(source="none"), "response": Response(content="Well.")}
    image = [{"role": "user", "content": [{"type": "image_url"}]}]
    for name, more in {"a": text, "b": {}, "c": {**text, "messages": image}}.items():
        recording.record(turn(name, name, **more), SessionClosed(session_id=name))
    config = evaluators(teacher=teacher.url, policy=None, tokenizer=model)
    await evaluate(config, recording)
    return recording


def batched(recording: Recording, model: Path) -> list[Loaded]:
    with recording.engine.begin() as connection:
        message = next_micro_batch(connection, "live", max_in_flight=99)
        assert message is not None
        loaded = load_batch(connection, message, ChatTokens(model))
    assert loaded is not None
    return loaded


async def test_recorded_answers_are_scored_by_the_policys_tokens(migrated_database_url: str, model_dir: Path) -> None:
    async with Teacher(model_dir).running() as teacher:
        recording = await taught(migrated_database_url, model_dir, teacher)
        made = ChatTokens(model_dir).turn(ASKED, [], SAID)
        whole = made.prompt_ids.tolist() + made.response_ids.tolist()
        assert sorted(teacher.asked) == sorted([whole, [1, 2, 3, 4, 5]])
    assert dict(recording.rows("SELECT turn_id, reason FROM evaluations WHERE state = 'failed'")) == {
        "c": "not_renderable: message 0 (user) holds image_url, and the policy reads text"
    }
    assert recording.sample("c")[:2] == ("dropped", "hint_failed")
    assert balance(recording)["ready"] == 2
    assert dict(recording.rows("SELECT turn_id, mean_gain FROM teacher_scores")) == {
        "a": None,  # nobody knows with which probability it was said
        "b": pytest.approx(-2 + (0.5 + 0.25 + 0.125) / 3),
    }
    samples = {len(one.sample.prompt_ids): one.sample for one in batched(recording, model_dir)}
    text = samples[len(made.prompt_ids)]
    assert text.prompt_ids.tolist() == made.prompt_ids.tolist()
    assert text.response_logprobs is None
    assert text.teacher_logprobs is not None
    assert text.teacher_topk_ids is not None
    assert np.unique(text.teacher_logprobs).tolist() == [-2.0]
    assert text.teacher_topk_ids.shape == (len(made.response_ids), K)
    assert text.teacher_topk_ids[:, 2].tolist() == made.response_ids.tolist()


async def test_scores_of_other_tokens_than_the_learners_are_not_trained(
    migrated_database_url: str, model_dir: Path, tmp_path: Path
) -> None:
    """The learner's model has another chat template than the evaluator's."""
    for path in model_dir.iterdir():
        if path.name != "model.safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    template = tmp_path / "chat_template.jinja"
    template.write_text("Hello. " + template.read_text())
    async with Teacher(model_dir).running() as teacher:
        recording = await taught(migrated_database_url, model_dir, teacher)
    unusable = [one.unusable for one in batched(recording, tmp_path) if one.unusable is not None]
    assert [drop.reason for drop in unusable] == ["hint_failed"]
    assert "tokens that are not the policy's" in unusable[0].detail


@pytest.mark.parametrize(
    ("shift", "more", "why"),
    [
        (1, 0, "does not tokenize as the policy's model does"),
        (0, -1, "vocabulary of"),
        (0, 100_000, "vocabulary of"),
    ],
)
async def test_a_teacher_with_another_tokenizer_than_the_policys_files_is_refused(
    migrated_database_url: str, model_dir: Path, shift: int, more: int, why: str
) -> None:
    async with Teacher(model_dir, shift, more).running() as teacher:
        with pytest.raises(TokenizerMismatch, match=why) as refused:
            await taught(migrated_database_url, model_dir, teacher)
    assert str(teacher.vocabulary) in str(refused.value)
    assert str(ChatTokens(model_dir).size) in str(refused.value)
