"""Divergences over k entries and a tail against OpenClaw, SDPO, TRL and verl."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor
from vectors import Parity, flat, matrix, needs_reference, same

from learner.aggregation import token_weights
from learner.losses.topk_divergence import topk_divergence

parity = Parity("05_topk_distillation")

CLOSE = {"rtol": 1e-6, "atol": 1e-7}  # token weights are float32


def given() -> dict[str, list[list[float]]]:
    return parity.inputs("topk_batch")


def kept() -> Tensor:
    return flat(given()["loss_masks"]).bool()


def owners() -> Tensor:
    return torch.arange(4).repeat_interleave(torch.tensor(given()["response_lengths"]))


def places() -> list[int]:
    """Rows of the packed logits that predict the response tokens."""
    totals = [len(row) for row in given()["tokens"]]
    starts = [0, *accumulate(totals)][:-1]
    return [
        start + prompt - 1 + token
        for start, prompt, response in zip(starts, given()["prompt_lengths"], given()["response_lengths"], strict=True)
        for token in range(response)  # type: ignore[call-overload]
    ]


def full(who: str, temperature: float = 1.0) -> Tensor:
    """Log-probs over the whole vocabulary at each response token, [N, V]."""
    return torch.log_softmax(matrix(given()[f"packed_{who}_logits"])[places()] / temperature, -1)


def entries() -> tuple[Tensor, Tensor, Tensor]:
    """Student's log-probs of the teacher's top k, the teacher's, and which of the batch's tokens are kept."""
    ids = torch.cat([torch.tensor(rows) for rows in given()["teacher_topk_indices"]])
    teacher = torch.cat([matrix(rows) for rows in given()["teacher_topk_log_probs"]])
    return full("student").gather(-1, ids), teacher, kept()[:, None].expand_as(teacher)


def ours(alpha: float, tail: bool, tokens: tuple[Tensor, Tensor, Tensor] | None = None) -> Tensor:
    student, teacher, mask = tokens or entries()
    return topk_divergence(student, teacher, mask, alpha=alpha, tail=tail)


@parity("openclaw_reverse_kl_tail", "openclaw_reverse_kl_tail_float32")
def test_reverse_kl_over_k_entries_and_a_tail(title: str) -> None:
    theirs = parity.case(title)
    student, teacher, mask = entries()
    if title.endswith("float32"):
        student, teacher = student.float(), teacher.float()
    divergence = ours(1.0, True, (student, teacher, mask))
    assert divergence.dtype == student.dtype
    sums = (divergence * token_weights(kept(), owners(), "sequence_mean")).sum() * 4
    same(sums, theirs["loss"], rtol=1e-5 if title.endswith("float32") else 1e-6)
    if "per_token" in theirs:
        same(divergence[kept()], flat(theirs["per_token"])[kept()].tolist())


@parity("openclaw_reverse_kl_tail_entropy")
def test_an_entropy_bonus_of_the_bins_is_openclaws_alone(title: str) -> None:
    """Ours is of the full distribution, which the step has anyway; the divergence is the same."""
    theirs = parity.case(title)
    sums = (ours(1.0, True) * token_weights(kept(), owners(), "sequence_mean")).sum() * 4
    same(sums, theirs["kl_loss"], **CLOSE)
    assert theirs["loss"] == theirs["kl_loss"] - 0.01 * theirs["entropy_loss"]


@parity("openclaw_reverse_kl_tail")
def test_gradients_to_the_logits(title: str) -> None:
    logits = matrix(given()["packed_student_logits"]).requires_grad_()
    ids = torch.cat([torch.tensor(rows) for rows in given()["teacher_topk_indices"]])
    student = torch.log_softmax(logits[places()], -1).gather(-1, ids)
    _, teacher, mask = entries()
    divergence = topk_divergence(student, teacher, mask, alpha=1.0)
    weights = token_weights(kept(), owners(), "sequence_mean").double() * 4
    (divergence * weights).sum().backward()
    assert logits.grad is not None
    same(logits.grad, parity.case(title)["grad_packed_logits"], **CLOSE)


@parity("openclaw_full_vocab")
def test_with_the_whole_vocabulary_the_tail_says_nothing(title: str) -> None:
    student, teacher = full("student"), full("teacher")
    mask = kept()[:, None].expand_as(student)
    with_tail = ours(1.0, True, (student, teacher, mask))
    same(with_tail[kept()], flat(parity.case(title)["per_token"])[kept()].tolist(), rtol=1e-6, atol=1e-6)
    exact = (student.exp() * (student - teacher)).sum(-1)
    same(ours(1.0, False, (student, teacher, mask))[kept()], exact[kept()].tolist())
    same(with_tail[kept()], exact[kept()].tolist(), rtol=1e-6, atol=1e-6)


@parity(
    "sdpo_alpha0.0_tail", "sdpo_alpha0.0_renorm", "sdpo_alpha0.5_tail", "sdpo_alpha0.5_renorm", "sdpo_alpha1.0_tail",
    "sdpo_alpha1.0_renorm", "sdpo_alpha0.3_tail", "sdpo_alpha0.5_tail_seqmean", "sdpo_alpha0.5_tail_is_clip2",
)  # fmt: skip
def test_jensen_shannon_with_a_tail_or_renormalised(title: str) -> None:
    theirs = parity.case(title)
    padded = parity.inputs("topk_padded")
    mask = matrix(padded["mask"]).bool()
    student = matrix(padded["student_topk_log_probs"]).requires_grad_()
    teacher = matrix(padded["teacher_topk_log_probs"])
    alpha, tail = theirs["inputs"]["alpha"], theirs["inputs"]["add_tail"]
    token = topk_divergence(student, teacher, mask[..., None].expand_as(student), alpha=alpha, tail=tail)
    weight = mask / mask.sum()
    if title.endswith("seqmean"):
        weight = mask / mask.sum(-1, keepdim=True) / 4
    if title.endswith("clip2"):
        gap = matrix(theirs["inputs"]["student_log_probs"]) - matrix(theirs["inputs"]["old_log_probs"])
        weight = weight * gap.exp().clamp(max=2.0)
    loss = (token * weight).sum()
    same(loss.detach(), theirs["loss"], rtol=1e-7)
    if "grad_student_topk_log_probs" in theirs:
        (gradient,) = torch.autograd.grad(loss, student)
        same(gradient, theirs["grad_student_topk_log_probs"], rtol=1e-6, atol=1e-9)


@parity("trl_gkd_beta0_temp1.0", "trl_gkd_beta0.1_temp1.0", "trl_gkd_beta0.5_temp1.0", "trl_gkd_beta0.5_temp2.0",
        "trl_gkd_beta0.9_temp1.0", "sdpo_full_alpha0.0", "sdpo_full_alpha0.5", "sdpo_full_alpha1.0")  # fmt: skip
def test_over_the_whole_vocabulary_it_is_the_generalised_jensen_shannon_divergence(title: str) -> None:
    """TRL's beta is our alpha: the teacher's share in the mixture."""
    theirs = parity.case(title)
    alpha = theirs["inputs"].get("alpha", theirs["inputs"].get("beta"))
    temperature = theirs["inputs"].get("temperature", 1.0)
    student, teacher = full("student", temperature), full("teacher", temperature)
    mask = kept()[:, None].expand_as(student)
    token = ours(alpha, False, (student, teacher, mask))
    mean = token.sum() / kept().sum()
    same(mean, theirs.get("batchmean") or theirs["loss"])
    if "sum" in theirs:
        same(token.sum(), theirs["sum"])
        same(mean / 11, theirs["mean"])


@parity("verl_forward_kl_topk_clampNone", "verl_forward_kl_topk_clamp-5.0")
def test_a_forward_kl_without_tail_and_renormalisation_is_no_divergence(title: str) -> None:
    """verl's sum over k entries of t (l_t - l_s) can be negative; it lacks what ours has in the tail."""
    student, teacher, _ = entries()
    everywhere = torch.ones_like(teacher).bool()
    part = (teacher.exp() * (teacher - student.clamp_min(-5.0 if "-5" in title else -torch.inf))).sum(-1)
    same(part, parity.case(title)["distillation_losses"], rtol=1e-5, atol=1e-6)
    rest = [1 - each.exp().sum(-1) for each in (student, teacher)]
    tail = rest[1] * (rest[1].log() - rest[0].log())
    if "None" in title:
        same(ours(0.0, True, (student, teacher, everywhere)), (part + tail).tolist())
    assert (ours(0.0, True, (student, teacher, everywhere)) >= 0).all()


@needs_reference
def test_every_case_has_a_test() -> None:
    parity.check_complete()
