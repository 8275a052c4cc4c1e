"""The policy in memory: what it writes is what it is, with adapters and without, and recipes change on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_sample, mixed_samples, same_weights, tiny_model, weights

from learner.collate import plan_forwards
from learner.critic import CriticOptions
from learner.errors import LearnerStopped
from learner.logprobs import response_log_probs
from learner.lora import LoraOptions
from learner.policy import Policy, load_model
from learner.step_options import AdvantageOptions, StepOptions, TeacherOptions

FULL = StepOptions(lr=1e-2, w_opd=0.0, tokens_per_forward=1000)
LORA = replace(FULL, lora=LoraOptions(rank=4))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base")
    tiny_model(dtype=torch.bfloat16).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def policy_of(base: Path, options: StepOptions, **more: Any) -> Policy:
    return Policy(base, run="one", options=options, **({"dtype": "bfloat16", "device": "cpu"} | more))


def trained(base: Path, options: StepOptions, **more: Any) -> Policy:
    policy = policy_of(base, options, **more)
    for _ in range(3):
        assert policy.trainer.train(mixed_samples()).skipped_reason is None
    return policy


def log_probs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return response_log_probs(model, plan_forwards([make_sample(1, response=20)], 1000)[0])[0]


@pytest.mark.parametrize("options", [FULL, LORA])
def test_what_is_written_is_what_it_is(base: Path, tmp_path: Path, options: StepOptions) -> None:
    policy = trained(base, options)
    policy.write(tmp_path)
    assert policy.largest_difference(tmp_path) == 0.0
    assert policy.largest_difference(base) > 0
    assert load_file(tmp_path / "model.safetensors").keys() == load_file(base / "model.safetensors").keys()
    assert (tmp_path / "tokenizer.json").read_text() == "{}"
    written = load_model(tmp_path, "bfloat16", "cpu")
    torch.testing.assert_close(log_probs(written), log_probs(policy.trainer.model), rtol=0, atol=0.2)


def test_an_adapter_is_written_alone_where_there_is_one(base: Path, tmp_path: Path) -> None:
    policy = trained(base, LORA)
    assert policy.has_adapter
    policy.write_adapter(tmp_path)
    assert (tmp_path / "adapter_config.json").exists()
    whole = (base / "model.safetensors").stat().st_size
    assert (tmp_path / "adapter_model.safetensors").stat().st_size < whole
    with pytest.raises(LearnerStopped, match="'one' trains all weights"):
        policy_of(base, FULL).write_adapter(tmp_path)


@pytest.mark.parametrize(("before", "after"), [(LORA, FULL), (FULL, LORA), (LORA, replace(LORA, lora=LoraOptions()))])
def test_a_recipe_with_other_adapters_goes_on_from_the_version(
    base: Path, tmp_path: Path, before: StepOptions, after: StepOptions
) -> None:
    policy = trained(base, before)
    policy.write(tmp_path / "before")
    policy.change_run("two", after, 3)
    assert policy.run == "two"
    assert policy.largest_difference(tmp_path / "before") == 0.0
    policy.trainer.train([make_sample(9, reward=1.0, behaviour=-0.5)])  # so much likelier before that no clip stops it
    assert policy.largest_difference(tmp_path / "before") > 0


@pytest.mark.parametrize("options", [FULL, LORA])
def test_a_recipe_of_the_same_kind_keeps_the_masters(base: Path, options: StepOptions) -> None:
    policy = trained(base, options)
    masters = [master.clone() for master in policy.trainer.optimizer.masters]
    policy.change_run("two", replace(options, lr=1e-5), 3)
    for one, other in zip(masters, policy.trainer.optimizer.masters, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("options", [FULL, LORA])
@pytest.mark.parametrize("changed", [False, True])
def test_the_reference_is_version_0_whatever_was_learned(base: Path, options: StepOptions, changed: bool) -> None:
    policy = trained(base, LORA if changed else options)
    policy.change_run("two", replace(options, kl_coefficient=0.1, lora=options.lora and LoraOptions(rank=2)), 3)
    reference = policy.trainer.others.reference
    assert reference is not None
    own = log_probs(policy.trainer.model)
    with reference.model() as model:
        assert torch.equal(log_probs(model), log_probs(load_model(base, "bfloat16", "cpu")))
    assert torch.equal(log_probs(policy.trainer.model), own)


def test_teachers_and_critics_come_with_the_recipe(base: Path) -> None:
    plain = policy_of(base, FULL).trainer.others
    assert (plain.reference, plain.teacher, plain.critic) == (None, None, None)
    for kind in ("ema", "best"):
        options = replace(FULL, w_opd=1.0, teacher=TeacherOptions(weights=kind))  # type: ignore[arg-type]
        assert policy_of(base, options).trainer.others.teacher is not None
    for kind in ("head", "model"):
        critic = CriticOptions(kind=kind)  # type: ignore[arg-type]
        options = replace(FULL, advantage=AdvantageOptions(kind="gae"), critic=critic)
        assert trained(base, options).trainer.others.critic is not None


@pytest.mark.parametrize("options", [FULL, LORA])
def test_recomputed_layers_make_the_same_bits(base: Path, options: StepOptions) -> None:
    one, other = trained(base, options), trained(base, options, recompute=True)
    assert same_weights(weights(one.trainer.model), weights(other.trainer.model))
