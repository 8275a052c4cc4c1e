"""A real vLLM server follows the topic `weights`: no request is refused, and what it serves is what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.collate import plan_forwards
from learner.logprobs import response_log_probs
from learner.policy import load_model
from learner.policy_server import CANARY_IDS, PolicyServer, ServerAway, ServerRefused
from learner.samples import TrainingSample
from tests.learner.following import PROMPT, Serving, gaps, generate, sharper

pytestmark = [pytest.mark.stack, pytest.mark.vllm]


@pytest.fixture
def serving(
    request: pytest.FixtureRequest,
    migrated_database_url: str,
    topics: str,
    vllm_server: str,
    model_dir: Path,
    tmp_path: Path,
) -> Iterator[Serving]:
    made = Serving(migrated_database_url, topics, vllm_server, model_dir, tmp_path, request.node.name)
    yield made
    made.engine.dispose()
    made.server.pause()
    made.server.reload(model_dir)
    made.server.forget_prefixes()
    made.server.set_tag("0")
    made.server.resume()


def test_the_base_is_loaded_at_the_start_and_then_each_version(serving: Serving) -> None:
    base = generate(serving.server.url, max_tokens=8)
    with serving.followed():
        serving.until(lambda: serving.loads() == [(0, "serving")])
        assert serving.server.tag() == "0"
        assert generate(serving.server.url, max_tokens=8)["choices"][0]["token_ids"] == base["choices"][0]["token_ids"]
        before = serving.server.log_probs(CANARY_IDS)
        serving.add(1, sharper)
        serving.until(lambda: len(serving.loads()) == 2)
    assert serving.loads() == [(0, "serving"), (1, "serving")]
    load = serving.last()
    assert load.canary_before == pytest.approx(sum(before), abs=1e-6)
    assert load.canary_after != load.canary_before
    answer = generate(serving.server.url, max_tokens=40, ignore_eos=True)["choices"][0]
    assert answer["weight_versions"] == [{"version": "1", "start": 0, "end": 40}]
    # What it serves is version 1: the learner's own log-probs agree with it, and not with version 0.
    old, new = gaps(serving, PROMPT, answer)
    assert new < 0.06
    assert new < old / 2


def test_of_several_that_wait_only_the_newest_is_loaded(serving: Serving) -> None:
    for version in (1, 2):
        serving.add(version, sharper, send=False)
    serving.send()
    with serving.followed():
        serving.until(lambda: bool(serving.loads()))
        time.sleep(1.0)
    assert serving.loads() == [(2, "serving")]


def test_a_request_in_flight_finishes_with_the_tokens_of_both(serving: Serving) -> None:
    with serving.followed():
        serving.until(lambda: serving.loads() == [(0, "serving")])
        serving.add(1, sharper, send=False)
        with ThreadPoolExecutor(3) as pool:
            flying = [
                pool.submit(generate, serving.server.url, max_tokens=400, ignore_eos=True, seed=i, temperature=1.0)
                for i in range(3)
            ]
            time.sleep(2.0)
            serving.send()
            serving.until(lambda: len(serving.loads()) == 2)
            # Not one that comes during or after the load is refused either.
            assert generate(serving.server.url, max_tokens=1)["choices"][0]["weight_versions"][0]["version"] == "1"
            answers = [one.result(300)["choices"][0] for one in flying]
    for answer in answers:
        assert len(answer["token_ids"]) == 400
        old, new = answer["weight_versions"]
        assert (old["version"], old["start"], new["version"], new["end"]) == ("0", 0, "1", 400)
        assert 0 < old["end"] == new["start"] < 400
        # The stamps are true: each span's log-probs are those of the weights that it names.
        for named, span in enumerate((old, new)):
            apart = gaps(serving, PROMPT, answer, slice(span["start"], span["end"]))
            assert apart[named] < 0.06
            assert apart[named] < apart[1 - named] / 2


def test_a_version_that_was_changed_on_disk_is_not_tried(serving: Serving) -> None:
    with serving.followed():
        serving.until(lambda: serving.loads() == [(0, "serving")])
        target = serving.add(1, sharper, send=False)
        data = bytearray((target / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (target / "model.safetensors").write_bytes(data)
        serving.send()
        serving.until(lambda: (1, "failed") in serving.loads())
        load = serving.last()
        assert "model.safetensors was changed" in load.detail
        assert (load.canary_before, load.canary_after) == (None, None)
        assert serving.server.tag() == "0"
        data[-1] ^= 1
        (target / "model.safetensors").write_bytes(data)
        serving.until(lambda: serving.loads()[-1] == (1, "serving"))
        assert serving.last().attempt >= 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}), r"is [7], not [576]"),
        (lambda tensors: tensors.update({"model.more.weight": torch.ones(7)}), "model.more.weight is not in version 0"),
    ],
)
def test_another_architecture_is_not_tried(
    serving: Serving, change: Callable[[dict[str, torch.Tensor]], object], says: str
) -> None:
    with serving.followed(retry_s=60.0):
        serving.until(lambda: serving.loads() == [(0, "serving")])
        serving.add(1, change)
        serving.until(lambda: (1, "failed") in serving.loads())
    assert says in serving.last().detail
    assert serving.last().canary_before is None
    assert serving.server.tag() == "0"


def test_a_version_that_does_not_load_leaves_the_one_before(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server cannot see the directory, as where it runs on another machine."""
    real = PolicyServer.reload

    def blind(self: PolicyServer, path: Path) -> None:
        real(self, Path("/not/mounted/here") if path.name == "v000001" else path)

    monkeypatch.setattr(PolicyServer, "reload", blind)
    with serving.followed(retry_s=60.0):
        serving.until(lambda: serving.loads() == [(0, "serving")])
        before = serving.server.log_probs(CANARY_IDS)
        with ThreadPoolExecutor(1) as pool:
            flying: Future[dict[str, Any]] = pool.submit(generate, serving.server.url, max_tokens=200, ignore_eos=True)
            time.sleep(0.5)
            serving.add(1, sharper)
            serving.until(lambda: (1, "failed") in serving.loads())
            answer = flying.result(300)["choices"][0]
        assert "/not/mounted/here" in serving.last().detail
        assert "version 0 is served" in serving.last().detail
        assert serving.server.tag() == "0"
        assert serving.server.log_probs(CANARY_IDS) == before
        assert [span["version"] for span in answer["weight_versions"]] == ["0"]
        assert len(answer["token_ids"]) == 200
        serving.add(2, sharper)
        serving.until(lambda: serving.loads()[-1] == (2, "serving"))
    assert serving.loads() == [(0, "serving"), (1, "failed"), (2, "serving")]


def test_a_canary_that_does_not_move_is_a_failure(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says yes and loads nothing."""
    real = PolicyServer.reload

    def lazy(self: PolicyServer, path: Path) -> None:
        if path.name != "v000001":
            real(self, path)

    monkeypatch.setattr(PolicyServer, "reload", lazy)
    with serving.followed(retry_s=60.0):
        serving.until(lambda: serving.loads() == [(0, "serving")])
        serving.add(1, sharper)
        serving.until(lambda: (1, "failed") in serving.loads())
    load = serving.last()
    assert "the canary did not move" in load.detail
    assert load.canary_before == load.canary_after
    assert serving.server.tag() == "0"


def test_the_same_weights_under_another_number_are_served(serving: Serving) -> None:
    """A version whose weights are those before (a tiny learning rate in bfloat16) moves no canary, rightly."""
    with serving.followed():
        serving.until(lambda: serving.loads() == [(0, "serving")])
        serving.add(1, lambda tensors: None)
        serving.until(lambda: len(serving.loads()) == 2)
    assert serving.loads()[-1] == (1, "serving")
    assert serving.server.tag() == "1"


def test_a_server_that_lost_the_version_gets_it_again(serving: Serving) -> None:
    """As after a restart: base model, tag "default"; and one that was left paused is resumed."""
    serving.add(1, sharper)
    with serving.followed():
        serving.until(lambda: serving.loads() == [(1, "serving")])
        served = serving.server.log_probs(CANARY_IDS)
        serving.server.reload(serving.base)
        serving.server.set_tag("default")
        serving.until(lambda: serving.loads() == [(1, "serving")] * 2)
        assert serving.server.tag() == "1"
        assert serving.server.log_probs(CANARY_IDS) == served
    serving.server.pause()
    with serving.followed():
        serving.until(lambda: len(serving.loads()) == 3)
        assert not serving.server.is_paused()


def test_old_prefixes_do_not_answer_for_new_weights(serving: Serving) -> None:
    """The same prompt before and after a load, with another request in flight that holds the cache."""
    prompt = list(range(100, 400))
    with serving.followed():
        serving.until(lambda: serving.loads() == [(0, "serving")])
        generate(serving.server.url, prompt, max_tokens=1)
        with ThreadPoolExecutor(1) as pool:
            flying = pool.submit(generate, serving.server.url, prompt, max_tokens=300, ignore_eos=True)
            time.sleep(0.5)
            serving.add(1, sharper)
            serving.until(lambda: len(serving.loads()) == 2)
            assert not flying.done()
            after = generate(serving.server.url, prompt, max_tokens=40, ignore_eos=True)["choices"][0]
            flying.result(300)
    old, new = gaps(serving, prompt, after)
    assert new < 0.06
    assert new < old / 2


def test_a_server_that_is_away_is_waited_for(serving: Serving) -> None:
    away = PolicyServer("http://127.0.0.1:9", "policy", timeout_s=1)
    with pytest.raises(ServerAway, match=r"127\.0\.0\.1:9"):
        away.tag()
    with pytest.raises(ServerRefused, match="answered 404"):
        serving.server._call("GET", "/no-such-thing")
    real, serving.server = serving.server, away
    with serving.followed():
        time.sleep(1.0)
    serving.server = real
    assert serving.loads() == []


def test_log_probs_at_zero_updates_agree_with_float32_vllm(vllm_server_f32: str, model_dir: Path) -> None:
    prompts = [PROMPT, PROMPT[:6], PROMPT + PROMPT]
    answers = [
        generate(vllm_server_f32, ids, max_tokens=40, temperature=1.0, seed=i)["choices"][0]
        for i, ids in enumerate(prompts)
    ]
    samples = [
        TrainingSample(
            sample_id=str(i),
            prompt_ids=np.array(ids, dtype=np.int32),
            response_ids=np.array(answer["token_ids"], dtype=np.int32),
            response_logprobs=np.array([t["logprob"] for t in answer["logprobs"]["content"]], dtype=np.float32),
        )
        for i, (ids, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    model = load_model(model_dir, "float32", "cpu")
    behaviour = torch.from_numpy(np.concatenate([s.response_logprobs for s in samples]))
    own = torch.zeros_like(behaviour)
    with torch.no_grad():
        for forward in plan_forwards(samples, 4096):
            own[forward.flat] = response_log_probs(model, forward)[0]
    assert len(own) > 60
    assert float((own - behaviour).abs().max()) < 1e-4


def test_a_server_can_be_kept_at_one_version_whatever_is_newest(serving: Serving) -> None:
    serving.add(1, sharper)
    serving.add(2, sharper)
    with serving.followed(version=1):
        serving.until(lambda: serving.loads() == [(1, "serving")])
        assert serving.server.tag() == "1"
        serving.add(3, sharper)
        serving.server.set_tag("default")  # as a server that was restarted
        serving.until(lambda: serving.loads() == [(1, "serving"), (1, "serving")])
        assert serving.server.tag() == "1"
    with serving.engine.connect() as connection:
        pinned = connection.exec_driver_sql("SELECT version, holder FROM weight_pins").all()
    assert [tuple(row) for row in pinned] == [(1, f"server {serving.server.url}")]
