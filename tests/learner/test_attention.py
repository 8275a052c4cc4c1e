"""Packed rows: every sample as if it were alone, in each architecture that can be packed; a clear no elsewhere."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from largest import Largest
from tiny import make_sample, tiny_model
from torch import Tensor

from learner import attention
from learner.attention import NAME, Packing, packed_attention, use_packed_attention
from learner.collate import Forward, plan_forwards
from learner.logprobs import response_hidden, response_log_probs
from learner.samples import TrainingSample

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {},
    "Qwen3 with a window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "Mistral": {"sliding_window": 6},
    "Gemma3Text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "Phi3": {},
}


def build(architecture: str) -> Any:
    """A tiny causal language model of that architecture, float32."""
    torch.manual_seed(0)
    name = architecture.split()[0]
    config = getattr(transformers, f"{name}Config")(**(SIZES | ARCHITECTURES[architecture]))
    return getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).float().eval()


def samples() -> list[TrainingSample]:
    return [make_sample(seed, prompt=2 + seed, response=9 - seed) for seed in range(6)]


def with_other_ids(sample: TrainingSample) -> TrainingSample:
    return replace(sample, prompt_ids=60 - sample.prompt_ids, response_ids=(60 - sample.response_ids))


def packed(model: Any, chosen: list[TrainingSample]) -> tuple[Forward, Tensor]:
    (forward,) = plan_forwards(chosen, 10_000)
    return forward, response_log_probs(model, forward)[0]


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_a_packed_sample_is_what_it_is_alone(architecture: str) -> None:
    """Against the untouched model, one sample at a time: attention, windows and rotary positions all right."""
    model, plain = build(architecture), build(architecture)
    forward, together = packed(model, samples())
    expected = []
    for sample in samples():
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.response_ids])).long()
        logits = plain(ids[None], use_cache=False).logits[0]
        first = len(sample.prompt_ids) - 1
        expected.append(torch.log_softmax(logits[first:-1], -1).gather(-1, ids[first + 1 :, None])[:, 0])
    torch.testing.assert_close(together, torch.cat(expected)[forward.flat], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", [0, 3, 5])
def test_a_change_in_one_sample_never_reaches_another(changed: int) -> None:
    """Neither in log-probs nor in gradients, bit for bit."""
    before, after = samples(), samples()
    after[changed] = with_other_ids(after[changed])
    seen = []
    for chosen in (before, after):
        model = tiny_model()
        forward, log_probs = packed(model, chosen)
        owners = torch.repeat_interleave(torch.arange(6), torch.tensor([len(s.response_ids) for s in chosen]))
        others = owners[forward.flat] != changed
        log_probs[others].sum().backward()
        seen.append((log_probs.detach()[others], [p.grad for p in model.model.layers.parameters()]))
    assert torch.equal(seen[0][0], seen[1][0])
    for one, other in zip(seen[0][1], seen[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_gradients_are_those_of_samples_alone() -> None:
    together, alone = tiny_model(), tiny_model()
    packed(together, samples())[1].sum().backward()
    for sample in samples():
        response_log_probs(alone, plan_forwards([sample], 1)[0])[0].sum().backward()
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)


def test_without_a_packing_the_model_is_what_it_was() -> None:
    """Padding masks, caches and generation go on as under transformers' own attention."""
    model, plain = tiny_model(), tiny_model()
    use_packed_attention(model)
    use_packed_attention(model)
    assert model.config._attn_implementation == NAME
    ids = torch.arange(1, 15).view(2, 7)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    for arguments in ({}, {"attention_mask": mask}):
        assert torch.equal(model(ids, **arguments).logits, plain(ids, **arguments).logits)
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": mask, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **options), plain.generate(ids, **options))


def test_the_name_of_the_attention_is_not_saved(tmp_path: Any) -> None:
    model = tiny_model()
    response_hidden(model, plan_forwards(samples(), 1000)[0])
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()


def test_layers_with_a_state_of_their_own_are_refused() -> None:
    config = transformers.Qwen3NextConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=32, num_experts=0,
        linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    model = transformers.Qwen3NextForCausalLM(config)
    with pytest.raises(ValueError, match="linear_attention: its samples cannot be packed"):
        use_packed_attention(model)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_scores_that_are_changed_otherwise_are_refused(name: str) -> None:
    states = torch.randn(1, 2, 4, 8)
    packing = Packing.of((1, 3), states.device)
    with pytest.raises(ValueError, match=name):
        packed_attention(torch.nn.Module(), states, states, states, None, packing, **{name: 30.0})


def reference_kernel(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, window: tuple[int, int], scale: float | None
) -> Tensor:
    """What a `varlen` kernel computes of [T, heads, D], by the definition."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * (scale or query.shape[-1] ** -0.5)
    places = torch.arange(len(query))
    segments = torch.bucketize(places, bounds[1:], right=True)
    distance = places[:, None] - places
    left = len(query) if window[0] < 0 else window[0]
    seen = (segments[:, None] == segments) & (distance >= -window[1]) & (distance <= left)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), value)


@pytest.mark.parametrize("package", ["flash_attn", "torch"])
@pytest.mark.parametrize("window", [None, 4])
def test_kernels_of_gpus_are_given_the_same_segments(
    package: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels themselves need a GPU; what they are asked is checked with their definition in their place."""

    def flash(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, same: Tensor, longest: int, again: int,
              softmax_scale: float, causal: bool, window_size: tuple[int, int]) -> Tensor:  # fmt: skip
        assert causal
        assert same is bounds
        assert longest == again == 7
        return reference_kernel(q, k, v, bounds, window_size, softmax_scale)

    def varlen(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, same: Tensor, longest: int, again: int, *,
               scale: float, window_size: tuple[int, int], enable_gqa: bool) -> Tensor:  # fmt: skip
        assert enable_gqa
        assert same is bounds
        assert longest == again == 7
        return reference_kernel(q, k, v, bounds, window_size, scale)

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 13, 8, generator=generator)
    key, value = (torch.randn(1, 2, 13, 8, generator=generator) for _ in range(2))
    packing = Packing.of((5, 7, 1), query.device)
    layer = torch.nn.Module()
    options: dict[str, Any] = {"packing": packing, "scaling": 0.3, "sliding_window": window}
    expected, _ = packed_attention(layer, query, key, value, None, **options)

    if package == "flash_attn":
        fake = ModuleType("flash_attn")
        fake.__spec__ = ModuleSpec("flash_attn", None)
        fake.flash_attn_varlen_func = flash  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flash_attn", fake)
    else:
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    monkeypatch.setattr(attention, "_takes_varlen", lambda _: True)
    attention._varlen_kernel.cache_clear()
    try:
        attended, weights = packed_attention(layer, query, key, value, None, **options)
    finally:
        attention._varlen_kernel.cache_clear()
    assert weights is None
    assert expected.shape == attended.shape == (1, 13, 4, 8)
    torch.testing.assert_close(attended, expected, rtol=1e-5, atol=1e-5)


def test_no_tensor_grows_with_the_square_of_a_row() -> None:
    """Twice the samples make every tensor of the forward and backward pass at most twice as large."""
    model, sizes = tiny_model(), []
    for count in (16, 32, 64):
        row = [make_sample(seed, prompt=20, response=1) for seed in range(count)]
        with Largest() as largest:
            packed(model, row)[1].sum().backward()
        sizes.append(largest.numel)
    assert sizes[2] <= 2 * sizes[1] <= 4 * sizes[0]
    assert sizes[2] < (64 * 21) ** 2 / 4
