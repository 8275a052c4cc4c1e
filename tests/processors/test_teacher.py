"""The teacher: the original response ids, scored under the hint, every token's log-prob the true one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest

from processors.evaluators.fingerprint import TokenizerMismatch, check_same_tokenizer
from processors.evaluators.hinted import hinted_prompt, with_hint
from processors.evaluators.score_reading import TeacherFailed, read_prompt_logprobs
from processors.evaluators.server import ModelServer, PermanentFault
from schemas.arrays import unpack_floats, unpack_ids
from schemas.events import PolicyRef, Tokens, VersionSpan
from schemas.recipes import Recipe, recipe_named
from tests.conftest import MAX_MODEL_LEN
from tests.processors.conversations import Recording
from tests.processors.evaluating import answered, balance, evaluate, evaluators, server

HINT = "Answer in one short sentence of at most twenty words."
QUESTION: list[dict[str, Any]] = [
    {"role": "system", "content": "You know much."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello! What would you like to know?"},
    {"role": "user", "content": "What is rain?"},
]
TOLERANCE = 1e-4


def opd(top_k: int = 4, **batch: Any) -> Recipe:
    hint = {"patterns": [r"(Answer in one .*words\.)", r"(WORD.*)"], "votes": 0}
    return recipe_named("opd", {"hint": hint, "teacher": {"top_k": top_k}, **batch})


async def sampled(url: str, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A turn of the real policy: messages, prompt ids, and sampled ids with their log-probs."""
    async with aiohttp.ClientSession() as http:
        policy = ModelServer(server(url), http)
        rendered = await policy.post("/v1/chat/completions/render", {"model": "policy", "messages": messages})
        sampling = {"max_tokens": 24, "temperature": 1.0, "seed": 7, "logprobs": 0, **more}
        body = {"model": "policy", "token_ids": rendered["token_ids"], "sampling_params": sampling}
        choice = (await policy.post("/inference/v1/generate", body))["choices"][0]
    ids = choice["token_ids"]
    logprobs = [item["logprob"] for item in choice["logprobs"]["content"]]
    return {
        "messages": messages,
        "policy": PolicyRef(name="policy", spans=[VersionSpan(version=0, start=0, end=len(ids))]),
        "tokens": Tokens(
            source="engine", prompt_ids=rendered["token_ids"], response_ids=ids, response_logprobs=logprobs
        ),
    }


async def taught(url: str, server_url: str, turn: dict[str, Any], reply: str = HINT, top_k: int = 4) -> Recording:
    """The turn, after an evaluator with this teacher has seen it."""
    recording = Recording(url, opd(top_k))
    recording.record(*answered("t", reply=reply, **turn))
    await evaluate(evaluators(teacher=server_url), recording, seconds=120)
    assert balance(recording)["pending"] == 0
    return recording


def failure(recording: Recording) -> str:
    """Why the teacher failed; nothing is written but that."""
    assert recording.one("SELECT count(*) FROM teacher_scores") == (0,)
    assert recording.sample("t")[:2] == ("dropped", "hint_failed")
    state, reason = recording.one("SELECT state, reason FROM evaluations WHERE signal = 'teacher'")
    assert state == "failed"
    return str(reason)


@pytest.mark.stack
@pytest.mark.vllm
@pytest.mark.slow
async def test_every_token_s_log_prob_is_the_true_one_the_first_included(
    migrated_database_url: str, vllm_server_f32: str, model_dir: Path
) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    turn = await sampled(vllm_server_f32, QUESTION)
    recording = await taught(migrated_database_url, vllm_server_f32, turn, top_k=5)
    prompt, logprobs, topk_ids, topk_logprobs, gain, top_k, teacher = recording.one(
        "SELECT hinted_prompt_ids, logprobs, topk_ids, topk_logprobs, mean_gain, top_k, teacher FROM teacher_scores"
    )
    prompt_ids, response_ids = unpack_ids(prompt).tolist(), turn["tokens"].response_ids

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    hinted = [*QUESTION[:3], {"role": "user", "content": f"What is rain?\n\n{HINT}"}]
    rendered = tokenizer.apply_chat_template(hinted, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert prompt_ids == list(rendered)

    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + response_ids])).logits[0, len(prompt_ids) - 1 : -1]
    true_TV = torch.log_softmax(logits.double(), dim=-1)
    true_T = true_TV[torch.arange(len(response_ids)), torch.tensor(response_ids)].numpy()
    ours_T = unpack_floats(logprobs)
    assert len(ours_T) == len(response_ids) > 3
    assert abs(ours_T[0] - true_T[0]) < TOLERANCE
    assert np.abs(ours_T - true_T).max() < TOLERANCE

    best = torch.topk(true_TV, 5, dim=-1)
    ours_TK = unpack_floats(topk_logprobs).reshape(-1, 5)
    assert np.abs(ours_TK - best.values.numpy()).max() < TOLERANCE
    assert (np.diff(ours_TK, axis=1) <= 0).all()
    named_TK = np.take_along_axis(true_TV.numpy(), unpack_ids(topk_ids).reshape(-1, 5), axis=1)
    assert np.abs(named_TK - ours_TK).max() < TOLERANCE
    assert gain == pytest.approx(np.mean(ours_T.astype(float) - turn["tokens"].response_logprobs), abs=1e-6)
    assert (top_k, teacher) == (5, "policy")
    assert recording.sample("t")[0] == "ready"

    # The behaviour's own log-probs are the same model's without the hint: the two differ by the hint alone.
    with torch.no_grad():
        plain_ids = turn["tokens"].prompt_ids
        plain = model(torch.tensor([plain_ids + response_ids])).logits[0, len(plain_ids) - 1 : -1]
    own_T = torch.log_softmax(plain.double(), dim=-1)[torch.arange(len(response_ids)), torch.tensor(response_ids)]
    assert np.abs(own_T.numpy() - turn["tokens"].response_logprobs).max() < TOLERANCE
    assert np.abs(ours_T - turn["tokens"].response_logprobs).max() > 0.01


@pytest.mark.stack
@pytest.mark.vllm
async def test_what_the_teacher_cannot_score_is_told(migrated_database_url: str, vllm_server: str) -> None:
    turn = await sampled(vllm_server, QUESTION)
    recording = await taught(migrated_database_url, vllm_server, turn, reply="WORD " + "word " * 1500)
    told = re.fullmatch(
        r"too_long: (\d+) prompt and (\d+) response tokens are (\d+), and policy at \S+ takes (\d+) at most .*",
        failure(recording),
    )
    assert told is not None
    prompt, response, whole, limit = map(int, told.groups())
    assert (response, whole, limit) == (len(turn["tokens"].response_ids), prompt + response, MAX_MODEL_LEN - 1)


@pytest.mark.stack
@pytest.mark.vllm
async def test_a_prompt_that_the_teacher_renders_otherwise_is_told(
    migrated_database_url: str, vllm_server: str
) -> None:
    turn = await sampled(vllm_server, QUESTION)
    tokens = msgspec.structs.replace(turn["tokens"], prompt_ids=[*turn["tokens"].prompt_ids, 198])
    recording = await taught(migrated_database_url, vllm_server, {**turn, "tokens": tokens})
    assert failure(recording).startswith("prompt_render_mismatch: ")


@pytest.mark.stack
@pytest.mark.vllm
async def test_a_turn_with_tools_is_scored_and_its_answer_is_kept(migrated_database_url: str, vllm_server: str) -> None:
    turn = await sampled(vllm_server, QUESTION)
    tools = [{"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}]
    recording = await taught(migrated_database_url, vllm_server, {**turn, "tools": tools})
    assert recording.sample("t")[0] == "ready"
    kept, digest = recording.one(
        "SELECT a.purpose, a.answer_digest FROM model_answers a JOIN teacher_scores c USING (answer_digest)"
    )
    assert kept == "teacher"
    with recording.engine.begin() as connection:  # as a crash after the answer, before the evaluation was finished
        connection.exec_driver_sql("DELETE FROM teacher_scores")
        connection.exec_driver_sql("UPDATE samples SET state = 'pending', ready_at = NULL")
        connection.exec_driver_sql("UPDATE evaluations SET state = 'open' WHERE signal = 'teacher'")
        before = connection.exec_driver_sql("SELECT content_digest FROM samples").scalar_one()
    await evaluate(evaluators(teacher=vllm_server), recording)
    assert recording.one("SELECT answer_digest FROM teacher_scores") == (digest,)
    assert recording.one("SELECT count(*) FROM model_answers") == (1,)
    assert recording.one("SELECT state, content_digest FROM samples") == ("ready", before)


@pytest.mark.stack
@pytest.mark.vllm
async def test_tokenizers_are_compared_where_the_servers_differ(vllm_server: str) -> None:
    async with aiohttp.ClientSession() as http:
        real = ModelServer(server(vllm_server), http)
        same = ModelServer(server(vllm_server.replace("127.0.0.1", "localhost")), http)
        await check_same_tokenizer(real, same)

        class Shifted(ModelServer):
            async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
                answer = await super().post(path, body)
                return {**answer, "tokens": [token + 1 for token in answer["tokens"]]}

        other = Shifted(server(vllm_server.replace("127.0.0.1", "localhost")), http)
        with pytest.raises(TokenizerMismatch, match="does not tokenize as the policy") as refused:
            await check_same_tokenizer(real, other)
        assert str(refused.value).count(" 49152 ids") == 1
        assert "the policy's 49152" in str(refused.value)

        class Larger(ModelServer):
            async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
                if path == "/inference/v1/generate":
                    raise PermanentFault("Vocabulary size: 151936", 400)
                return await super().post(path, body)

        larger = Larger(server(vllm_server.replace("127.0.0.1", "localhost")), http)
        with pytest.raises(TokenizerMismatch, match=r"has a vocabulary of 151936 ids, and the policy .* one of 49152"):
            await check_same_tokenizer(real, larger)


def test_the_hint_goes_to_the_last_user_message_only() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b", "name": "n"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "c"},
    ]
    hinted = with_hint(messages, "Be brief.")
    assert hinted[1] == {"role": "user", "content": "b\n\nBe brief.", "name": "n"}
    assert [hinted[0], *hinted[2:]] == [messages[0], *messages[2:]]
    assert messages[1]["content"] == "b"


def test_a_hint_is_a_part_of_its_own_in_a_message_of_parts() -> None:
    parts = [{"type": "text", "text": "a"}]
    (message,) = with_hint([{"role": "user", "content": parts}], "Be brief.")
    assert message["content"] == [*parts, {"type": "text", "text": "\n\nBe brief."}]
    with pytest.raises(TeacherFailed, match="no_user_message"):
        with_hint([{"role": "system", "content": "a"}], "Be brief.")


def test_a_context_goes_to_the_system_message_and_becomes_it_where_there_is_none() -> None:
    asked = {"role": "user", "content": "a"}
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "You help."}, asked]
        assert with_hint(messages, "Be brief.", "system") == [
            {"role": role, "content": "You help.\n\nBe brief."},
            asked,
        ]
    assert with_hint([asked], "Be brief.", "system") == [{"role": "system", "content": "Be brief."}, asked]


def test_the_hinted_prompt_is_the_stored_one_with_the_hint_in_it() -> None:
    plain, hinted = [1, 2, 3, 9, 8], [1, 2, 3, 5, 6, 9, 8]
    assert hinted_prompt(plain, plain, hinted) == hinted
    # The engine saw tools in another order of keys than the log gives them back: its ids stay.
    assert hinted_prompt([1, 7, 7, 3, 9, 8], plain, hinted) == [1, 7, 7, 3, 5, 6, 9, 8]
    for stored in ([1, 2, 3, 9], [1, 2, 3, 9, 8, 8], [8], []):
        with pytest.raises(TeacherFailed, match="prompt_render_mismatch"):
            hinted_prompt(stored, plain, hinted)
    with pytest.raises(TeacherFailed, match="prompt_render_mismatch"):
        hinted_prompt(plain, plain, plain)


def place(*pairs: tuple[int, float]) -> dict[str, Any]:
    """One place of an answer: ids and log-probs, likeliest first."""
    return {str(token): {"logprob": value, "rank": rank} for rank, (token, value) in enumerate(pairs, start=1)}


def entries() -> list[dict[str, Any] | None]:
    """Two prompt ids, then response ids 5 (third by rank) and 9 (not among the first four)."""
    first = place((1, -0.1), (2, -0.2), (5, -0.3), (4, -0.4))
    second = place((1, -0.1), (2, -0.2), (3, -0.3), (4, -0.4)) | {"9": {"logprob": -8.0, "rank": 700}}
    return [None, place((2, -1.0)), first, second]


def test_the_chosen_token_is_beside_the_top_k_not_in_it() -> None:
    logprobs, ids, values = read_prompt_logprobs(entries(), 2, [5, 9], 4)
    assert logprobs == [-0.3, -8.0]
    assert ids == [[1, 2, 5, 4], [1, 2, 3, 4]]
    assert values == [[-0.1, -0.2, -0.3, -0.4]] * 2


@pytest.mark.parametrize("impossible", [-9999.0, float("-inf")])
def test_a_token_that_the_teacher_holds_for_impossible_is_minus_infinity_alone(impossible: float) -> None:
    """-9999 is how the server writes it; as a number it would be an advantage of thousands of nats."""
    changed = entries()
    assert changed[3] is not None
    changed[3]["9"]["logprob"] = impossible
    logprobs, _, values = read_prompt_logprobs(changed, 2, [5, 9], 4)
    assert logprobs == [-0.3, float("-inf")]
    assert values == [[-0.1, -0.2, -0.3, -0.4]] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: e.pop(), "length: 3 places for 2 prompt and 2 response ids"),
        (lambda e: e.append(place((1, -1.0))), "length: 5 places"),
        (lambda e: e[3].pop("9"), "ids: response token 1 is 9"),
        (lambda e: e.__setitem__(2, None), "ids: response token 0 is 5"),
        (lambda e: e[3].pop("4"), "topk: response token 1"),
        (lambda e: e[3]["9"].update(logprob=None), "not_a_number: response token 1"),
        (lambda e: e[3]["9"].update(logprob=float("nan")), "not_a_number: response token 1"),
        (lambda e: e[2]["5"].update(logprob=0.5), "not_a_number: response token 0"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_never_padded(change: Any, reason: str) -> None:
    broken = entries()
    change(broken)
    with pytest.raises(TeacherFailed, match=reason):
        read_prompt_logprobs(broken, 2, [5, 9], 4)
