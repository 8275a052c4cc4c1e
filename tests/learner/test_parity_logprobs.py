"""The cases of log-probs and entropy that `test_logprobs.py` does not name: temperature, and logits of -inf."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from vectors import Parity, flat, matrix, needs_reference, same

from learner.logprobs import token_scores

parity = Parity(
    "10_logprob_entropy",
    elsewhere={  # test_logprobs.py
        "verl_logprobs_naive", "verl_entropy", "trl_forward_temp1", "openrlhf_logprobs", "prime_full_layout",
        "slime_packed_temp1", "openclaw_packed", "entropy_peaked", "entropy_uniform",
    },
)  # fmt: skip


def scores(logits: Tensor, targets: list[int], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """With an identity head, hidden states are logits."""
    head = torch.eye(logits.shape[-1], dtype=logits.dtype)
    result = token_scores(logits, head, torch.tensor(targets), temperature=temperature)
    return result.chosen, result.entropy


def one() -> tuple[Tensor, list[int]]:
    given = parity.inputs("one")
    return matrix(given["logits"]), [*given["prompt_ids"], *given["answer_ids"]]


@parity("verl_logprobs_v2", "trl_logprobs")
def test_two_more_forms_of_the_same(title: str) -> None:
    theirs = parity.case(title)
    logits, ids = one()
    chosen, _ = scores(logits[:-1], ids[1:])
    same(chosen, theirs["all"])
    if "entropy" in theirs:
        _, entropy = scores(logits, [0] * len(logits))
        same(entropy[: len(theirs["entropy"])], theirs["entropy"])


@parity("trl_forward_temp0.7", "openrlhf_logprobs_temp0.7")
def test_a_temperature_divides_the_logits_first(title: str) -> None:
    theirs = parity.case(title)
    logits, ids = one()
    chosen, entropy = scores(logits[:-1], ids[1:], 0.7)
    if "all" in theirs:
        same(chosen, theirs["all"])
    else:
        same(chosen[2:], theirs["answer_log_probs"])
        same(entropy[2:], theirs["answer_entropy"])


@parity("slime_packed_temp0.7")
def test_a_temperature_in_packed_rows(title: str) -> None:
    packed = parity.inputs("packed")
    rows, targets, start = [], [], 0
    for tokens, total, response in zip(packed["tokens"], packed["total_lengths"], packed["response_lengths"],
                                       strict=True):  # fmt: skip
        rows += range(start + total - response - 1, start + total - 1)
        targets += tokens[total - response :]
        start += total
    chosen, entropy = scores(matrix(packed["packed_logits_float32"]).float()[rows], targets, 0.7)
    same(chosen, flat(parity.case(title)["log_probs"]).tolist(), rtol=1e-5, atol=1e-6)
    same(entropy, flat(parity.case(title)["entropy"]).tolist(), rtol=1e-5, atol=2e-6)


@parity("entropy_minus_inf")
def test_an_impossible_token_makes_the_entropy_nan_in_three_peers(title: str) -> None:
    """0 times -inf. Ours says what the possible ones say; a head gives no -inf, so it comes as a huge negative."""
    theirs = parity.case(title)
    assert {
        theirs[peer] if isinstance(theirs[peer], str) else theirs[peer][0] for peer in ("verl", "trl", "openrlhf")
    } == {"nan"}
    logits = matrix(theirs["inputs"]["logits"])
    _, entropy = scores(torch.where(logits == -math.inf, -1e300, logits), [0])
    possible = torch.softmax(logits[logits > -math.inf], -1)
    assert float(entropy) == pytest.approx(float(-(possible * possible.log()).sum()))


@needs_reference
def test_every_case_has_a_test() -> None:
    parity.check_complete()
