"""Adapters: the base stays, what is saved is what peft reads, and merged weights compute the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny import make_sample, mixed_samples, on_policy, same_weights, tiny_model, weights

from learner.collate import plan_forwards
from learner.logprobs import response_log_probs
from learner.lora import LoraOptions, add_adapter, has_adapter, load_adapter, merged_state, save_adapter
from learner.objective import StepOptions
from learner.step import PolicyTrainer

OPTIONS = LoraOptions(rank=4, alpha=8)


def adapted(dtype: torch.dtype = torch.float32, options: LoraOptions = OPTIONS) -> Any:
    model = tiny_model(dtype=dtype)
    add_adapter(model, options)
    return model


def trained(dtype: torch.dtype = torch.float32) -> Any:
    model = adapted(dtype)
    trainer = PolicyTrainer(model, StepOptions(lr=1e-2, tokens_per_forward=1000))
    for _ in range(3):
        trainer.train(mixed_samples())
    return model


def log_probs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return response_log_probs(model, plan_forwards(mixed_samples(), 1000)[0])[0]


def test_a_fresh_adapter_changes_nothing() -> None:
    model = adapted()
    assert torch.equal(log_probs(model), log_probs(tiny_model()))
    assert has_adapter(model)
    assert not has_adapter(tiny_model())
    assert same_weights(weights(model), weights(adapted()))  # the first values are no accident


def test_only_adapters_learn() -> None:
    base, model = weights(tiny_model()), adapted()
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert names == {name for name, _ in model.named_parameters() if "lora_" in name}
    assert len(names) == 2 * 7 * 2  # A and B of seven linear layers in each of two layers
    sample = on_policy(model, make_sample(1, reward=1.0))
    trainer = PolicyTrainer(model, StepOptions(lr=1e-2, w_opd=0.0))
    for _ in range(3):
        trainer.train([sample])
    assert on_policy(model, sample).response_logprobs.sum() > sample.response_logprobs.sum() + 0.05
    for name, value in weights(model).items():
        plain = name.replace(".base_layer", "")
        assert plain not in base or torch.equal(value, base[plain]), name
    assert sum(master.numel() for master in trainer.optimizer.masters) < sum(v.numel() for v in base.values()) / 2


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.2)])
def test_merged_weights_compute_the_same(dtype: torch.dtype, tolerance: float) -> None:
    model, plain = trained(dtype), tiny_model(seed=9, dtype=dtype)
    plain.load_state_dict(merged_state(model))
    assert merged_state(model).keys() == plain.state_dict().keys()
    torch.testing.assert_close(log_probs(plain), log_probs(model), rtol=0, atol=tolerance)
    assert float((log_probs(plain) - log_probs(tiny_model(dtype=dtype))).abs().max()) > 1


def test_merged_weights_of_a_model_without_adapters_are_its_own() -> None:
    model = tiny_model()
    assert same_weights(merged_state(model), dict(model.state_dict()))


def test_peft_reads_what_is_saved(tmp_path: Path) -> None:
    model = trained()
    save_adapter(model, tmp_path, base="policy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, "policy")
    theirs = PeftModel.from_pretrained(tiny_model(), str(tmp_path)).eval()
    ids = torch.arange(1, 20)[None]
    torch.testing.assert_close(theirs(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)

    again = adapted()
    load_adapter(again, tmp_path)
    assert same_weights(weights(again), weights(model))


def test_an_adapter_of_another_shape_is_refused(tmp_path: Path) -> None:
    save_adapter(trained(), tmp_path)
    for other in (replace(OPTIONS, rank=8), replace(OPTIONS, targets=("q_proj", "v_proj"))):
        with pytest.raises(ValueError, match="other layers or another rank"):
            load_adapter(adapted(options=other), tmp_path)


def test_targets_can_be_named() -> None:
    model = adapted(options=replace(OPTIONS, targets=("q_proj", "v_proj")))
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(names) == 2 * 2 * 2
    assert all("q_proj" in name or "v_proj" in name for name in names)


def test_what_cannot_be_is_refused() -> None:
    for wrong in ({"rank": 0}, {"alpha": 0.0}, {"targets": ()}, {"targets": ("lm_head",)}):
        with pytest.raises(ValueError, match="LoRA needs"):
            LoraOptions(**wrong)
    with pytest.raises(ValueError, match="adapters already"):
        add_adapter(adapted(), OPTIONS)
    with pytest.raises(ValueError, match="nothing_here"):
        add_adapter(tiny_model(), replace(OPTIONS, targets=("nothing_here",)))
