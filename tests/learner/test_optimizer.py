"""AdamW on master weights: torch's own numbers, small steps that bfloat16 would lose, exact resume."""

from __future__ import annotations

import io
from contextlib import suppress

import pytest
import torch
from tiny import mixed_samples, same_weights, tiny_model, weights
from torch import nn

from learner.collate import plan_forwards
from learner.logprobs import response_log_probs
from learner.objective import StepOptions
from learner.optimizer import MasterAdamW
from learner.step import PolicyTrainer


def with_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = (scale * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)


def adamw(model: nn.Module, lr: float = 1e-3) -> MasterAdamW:
    return MasterAdamW(model, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


def test_in_float32_it_is_torchs_adamw_with_clipped_gradients() -> None:
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizer = adamw(ours)
    plain = torch.optim.AdamW(theirs.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)
    for seed in range(4):
        with_gradients(ours, seed, scale=10.0)
        with_gradients(theirs, seed, scale=10.0)
        optimizer.collect()
        optimizer.step(1.0, optimizer.gradient_norm())
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        plain.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-5, atol=1e-6)


def test_steps_below_bfloat16s_resolution_add_up() -> None:
    """64 steps of 1e-4 on a weight of 1: each alone rounds to nothing, together they are 0.0064."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = adamw(model, lr=1e-4)
    for _ in range(64):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.collect()
        optimizer.step(1.0, optimizer.gradient_norm())
    assert float(optimizer.masters[0]) == pytest.approx(1 - 0.0064, abs=1e-5)
    assert float(model.weight.detach()) == pytest.approx(1 - 0.0064, abs=0.004)
    assert float(model.weight.detach()) < 1


def test_gradients_of_several_passes_are_summed_in_float32() -> None:
    """256 + 1 is 256 in bfloat16."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    optimizer = adamw(model)
    for value in (256.0, 1.0, 1.0):
        model.weight.grad = torch.full_like(model.weight, value)
        optimizer.collect()
        assert model.weight.grad is None
    assert optimizer.gradient_norm() == 258.0
    optimizer.discard()
    assert optimizer.gradient_norm() == 0.0


@pytest.mark.parametrize("junk", [float("nan"), float("inf")])
def test_a_norm_says_when_any_gradient_is_not_finite(junk: float) -> None:
    model = nn.Linear(3, 2)
    with_gradients(model, 0)
    assert model.bias.grad is not None
    model.bias.grad[1] = junk
    optimizer = adamw(model)
    optimizer.collect()
    assert not optimizer.gradient_norm() < float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_saved_and_loaded_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    options = StepOptions(lr=1e-3, tokens_per_forward=25)
    through = PolicyTrainer(tiny_model(dtype=dtype), options)
    for _ in range(2):
        through.train(mixed_samples())
    file = io.BytesIO()
    torch.save(through.optimizer.state_dict(), file)
    for _ in range(2):
        through.train(mixed_samples())

    file.seek(0)
    resumed = PolicyTrainer(tiny_model(seed=5, dtype=dtype), options)  # other weights: all comes from the state
    resumed.optimizer.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(2):
        resumed.train(mixed_samples())
    assert same_weights(weights(through.model), weights(resumed.model))
    for one, other in zip(through.optimizer.masters, resumed.optimizer.masters, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_taken_as_they_come(dtype: torch.dtype) -> None:
    """The last parameter's gradient, the embedding's, is whole when every other one is gone already; the sums are the
    same."""
    (forward,) = plan_forwards(mixed_samples(), 1000)
    sums = []
    for way in ("taken", "collected"):
        model = tiny_model(dtype=dtype)
        optimizer = adamw(model)
        alive: list[int] = []
        last = model.model.embed_tokens.weight
        last.register_post_accumulate_grad_hook(
            lambda _, alive=alive, model=model: alive.append(sum(p.grad is not None for p in model.parameters()))
        )
        for _ in range(2):
            loss = response_log_probs(model, forward)[0].sum()
            if way == "taken":
                with optimizer.collecting():
                    loss.backward()
            else:
                loss.backward()
                optimizer.collect()
        assert all(p.grad is None for p in model.parameters())
        assert alive == [1, 1] if way == "taken" else alive[0] > 10
        response_log_probs(model, forward)[0].sum().backward()  # outside: nothing is taken any more
        assert all(p.grad is not None for p in model.parameters())
        sums.append(optimizer._gradients)
    for one, other in zip(*sums, strict=True):
        assert one is not None
        assert other is not None
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


def test_masters_of_a_float32_model_are_its_parameters() -> None:
    model, low = tiny_model(), tiny_model(dtype=torch.bfloat16)
    optimizer, copies = adamw(model), adamw(low)
    assert all(master.is_set_to(p) for master, p in zip(optimizer.masters, model.parameters(), strict=True))
    assert all(master.dtype == torch.float32 for master in copies.masters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lent_values_leave_no_trace(dtype: torch.dtype) -> None:
    model, other = tiny_model(dtype=dtype), tiny_model(seed=3, dtype=dtype)
    optimizer = adamw(model)
    optimizer.masters[0].add_(1e-7)  # below bfloat16's resolution: only the masters know it
    before, masters = weights(model), [master.clone() for master in optimizer.masters]
    with suppress(KeyError), optimizer.lend([p.detach() for p in other.parameters()]):
        assert same_weights(weights(model), weights(other))
        raise KeyError
    assert same_weights(before, weights(model))
    assert all(torch.equal(one, two) for one, two in zip(masters, optimizer.masters, strict=True))
