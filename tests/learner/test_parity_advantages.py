"""Advantages against twelve peers: where they agree, and where ours differs from one of them and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from vectors import Parity, flat, matrix, needs_reference, same

from learner.advantages.batch_baseline import batch_baseline_advantage
from learner.advantages.extrapolated import extrapolated_advantage
from learner.advantages.gae import gae
from learner.advantages.group import STD_EPS, group_advantage, leave_one_out_advantage
from learner.advantages.mirror_descent import mirror_descent_advantage
from learner.advantages.returns import returns_to_go, token_rewards
from learner.advantages.reward import reward_advantage
from learner.advantages.whitening import whiten

parity = Parity("03_advantages")
gopd = Parity("09_gopd_exopd")

FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}
EIGHT = [1.0, -1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0]
FOURS = ["a"] * 4 + ["b"] * 4
UNEVEN = ["a"] * 4 + ["b"] * 3 + ["c"] + ["d"] * 3
ALONE = 7  # the row of the group of one


def rows(key: str) -> list[Tensor]:
    """Each answer's entries of `groups` or `groups_logprobs`, padding cut off."""
    groups, log_probs = parity.inputs("groups"), parity.inputs("groups_logprobs")
    table = groups.get(key) or log_probs[key]
    return [matrix(row[:length]) for row, length in zip(table, groups["lengths"], strict=True)]


def masks(title: str = "verl_rpp_gamma0.9") -> list[Tensor]:
    lengths = parity.inputs("groups")["lengths"]
    table = parity.case(title)["inputs"].get("mask") or parity.inputs("groups")["mask"]
    return [matrix(row[:length]).bool() for row, length in zip(table, lengths, strict=True)]


def compare(ours: list[Tensor], theirs: list[list[float]], kept: list[Tensor], **tolerances: float) -> None:
    """Row by row at kept tokens."""
    for mine, other, mask in zip(ours, theirs, kept, strict=True):
        same(mine[mask].detach(), matrix(other)[: len(mask)][mask].tolist(), **tolerances)


def first_kept(advantages: list[list[float]], mask: list[list[float]]) -> list[float]:
    return [row[kept.index(1.0)] for row, kept in zip(advantages, mask, strict=True)]


def kl_rows() -> list[Tensor]:
    return [new - reference for new, reference in zip(rows("log_probs"), rows("ref_log_probs"), strict=True)]


def returns(kept: list[Tensor], gamma: float, *, kl: list[Tensor] | None = None, beta: float = 0.0) -> list[Tensor]:
    found = []
    for row, (reward, mask) in enumerate(zip(parity.inputs("groups")["rewards"], kept, strict=True)):
        rewards_T, mask_T = token_rewards(reward, mask, kl_T=None if kl is None else kl[row], kl_coefficient=beta)
        found.append(returns_to_go(rewards_T, mask_T, gamma=gamma))
    return found


def whitened(values: list[Tensor], kept: list[Tensor]) -> list[Tensor]:
    joined, _ = whiten(torch.cat(values), torch.cat(kept))
    return list(joined.split([len(row) for row in values]))


@parity("verl_grpo_std", "verl_grpo_nostd")
def test_verl_trains_a_group_of_one_on_its_raw_reward_and_ours_does_not(title: str) -> None:
    theirs = parity.case(title)["per_sequence"]
    given = parity.inputs("groups")
    ours, mask = group_advantage(given["rewards"], given["group_ids"], std=title == "verl_grpo_std")
    others = [row for row in range(11) if row != ALONE]
    same(ours[others], matrix(theirs)[others].tolist(), **FLOAT32)
    assert theirs[ALONE] == pytest.approx(0.7, rel=1e-5)
    assert ours[ALONE] == 0
    # A group of one and one without variance are not trained.
    assert mask.tolist() == [name in "ad" for name in UNEVEN]


@parity("verl_rloo_vec")
def test_leave_one_out(title: str) -> None:
    given = parity.inputs("groups")
    ours, mask = leave_one_out_advantage(given["rewards"], given["group_ids"])
    same(ours, parity.case(title)["per_sequence"], **FLOAT32)
    assert mask.tolist() == [name in "ad" for name in UNEVEN]


@parity("openrlhf_rloo", "openrlhf_dr_grpo", "trl_grpo_none", "slime_norm_nostd")
def test_group_means_agree(title: str) -> None:
    theirs = parity.case(title)
    if title.startswith("openrlhf"):
        theirs = first_kept(theirs["advantages"], theirs["inputs"]["mask"])
    else:
        theirs = theirs.get("advantages") or theirs["rewards"]
    if title == "openrlhf_rloo":
        ours, _ = leave_one_out_advantage(EIGHT, FOURS)
    else:
        ours, _ = group_advantage(EIGHT, FOURS, std=False)
        assert mirror_descent_advantage(EIGHT, FOURS)[0].tolist() == ours.tolist()
    same(ours, theirs, **FLOAT32)


@parity("trl_grpo_group", "slime_norm_std", "openrlhf_group_norm")
def test_stds_differ_by_what_is_added_to_them_alone(title: str) -> None:
    theirs = parity.case(title)
    if title == "openrlhf_group_norm":
        values = first_kept(theirs["advantages"], theirs["inputs"]["mask"])
    else:
        values = theirs.get("advantages") or theirs["rewards"]
    added = {"trl_grpo_group": 1e-4, "slime_norm_std": 1e-6, "openrlhf_group_norm": 1e-9}[title]
    ours, _ = group_advantage(EIGHT, FOURS)
    std = float(torch.tensor(EIGHT[:4], dtype=torch.float64).std())
    same(ours.double() * (std + STD_EPS) / (std + added), values, **FLOAT32)


@parity("trl_grpo_batch")
def test_a_batchs_std_over_group_means_is_trls_alone(title: str) -> None:
    """Ours takes mean and std from the same answers: from the group, or (reinforce++) from the batch."""
    centred, _ = group_advantage(EIGHT, FOURS, std=False)
    std = torch.tensor(EIGHT, dtype=torch.float64).std()
    same(centred.double() / (std + 1e-4), parity.case(title)["advantages"], **FLOAT32)


@parity("trl_grpo_group_of_one", "slime_norm_group_of_one", "slime_norm_group_of_one_nostd")
def test_groups_of_one_are_0_or_nan_in_peers_and_masked_in_ours(title: str) -> None:
    theirs = parity.case(title)
    theirs = theirs.get("advantages") or theirs["rewards"]
    assert theirs == (["nan", "nan"] if title == "slime_norm_group_of_one" else [0.0, 0.0])
    for std in (True, False):
        ours, mask = group_advantage([0.7, -0.3], ["a", "b"], std=std)
        assert ours.tolist() == [0.0, 0.0]
        assert not mask.any()


@parity("trl_grpo_unscorable")
def test_an_unscorable_answer_shifts_no_sibling_and_is_masked_where_trl_makes_it_0(title: str) -> None:
    theirs = parity.case(title)["advantages_before_fix"]
    ours, mask = group_advantage([1.0, None, 0.0, 1.0], ["a"] * 4)
    assert mask.tolist() == [True, False, True, True]
    assert ours[1] == 0
    same(ours[mask], [value for value in theirs if value != "nan"], rtol=2e-4)  # TRL adds 1e-4 to the std


@parity("slime_norm_uneven")
def test_slime_takes_a_batch_of_uneven_groups_for_one_group(title: str) -> None:
    theirs = parity.case(title)
    rewards = theirs["inputs"]["rewards"]
    as_one, _ = group_advantage(rewards, ["all"] * len(rewards))
    same(as_one, theirs["rewards"], **FLOAT32)
    ours, _ = group_advantage(rewards, UNEVEN)
    assert float((ours - as_one).abs().max()) > 0.3


@parity("slime_norm_off", "openclaw_plain", "openclaw_slime_broadcast")
def test_a_plain_reward_is_spread_over_every_token_and_a_neutral_one_is_masked(title: str) -> None:
    theirs = parity.case(title)
    rewards = theirs["inputs"]["rewards"]
    given = theirs.get("rewards") or theirs["advantages"]
    for place, (reward, other) in enumerate(zip(rewards, given, strict=True)):
        length = theirs["inputs"].get("response_lengths", [1] * len(rewards))[place]
        ours, mask = reward_advantage(reward, length)
        same(ours, other if isinstance(other, list) else [other] * length, **FLOAT32)
        assert bool(mask.all()) == (reward != 0)


@parity("tinker_group_mean", "prime_group_mean")
def test_ragged_groups(title: str) -> None:
    theirs = parity.case(title)
    rewards = [reward for group in theirs["inputs"]["groups"] for reward in group]
    ours, _ = group_advantage(rewards, UNEVEN, std=False)
    same(ours, flat(theirs["advantages"]).tolist(), **FLOAT32)


@parity("verl_rpp_gamma0.9")
def test_reinforce_plus_plus_as_in_verl(title: str) -> None:
    """Holes consume no gamma, and whitening runs over kept tokens with the unbiased variance."""
    theirs, kept = parity.case(title), masks()
    ours = returns(kept, 0.9)
    compare(ours, theirs["returns"], kept)
    compare(whitened(ours, kept), theirs["advantages"], kept, rtol=1e-7, atol=1e-8)


@parity("openrlhf_reinforce_gamma1.0", "openrlhf_reinforce_gamma0.9", "openrlhf_reinforce_kl0.1")
def test_reinforce_plus_plus_as_in_openrlhf_but_for_holes_and_the_divisor_of_the_variance(title: str) -> None:
    theirs, kept = parity.case(title), masks()
    gamma = theirs["inputs"]["gamma"]
    kl = kl_rows() if "kl" in title else None
    ours = returns(kept, gamma, kl=kl, beta=0.1 if kl else 0.0)
    whole = [row for row, mask in enumerate(kept) if mask.all()] if gamma != 1 else list(range(11))
    compare([ours[r] for r in whole], [theirs["returns"][r] for r in whole], [kept[r] for r in whole], **FLOAT32)
    if gamma != 1:  # the first token of the row with a hole: three steps in theirs, two in ours
        assert theirs["returns"][0][0] == pytest.approx(0.9**3)
        assert float(ours[0][0]) == pytest.approx(0.9**2)
        return
    tokens = int(torch.cat(kept).sum())
    unbiased = [row * ((tokens - 1) / tokens) ** 0.5 for row in map(matrix, theirs["advantages"])]
    compare(whitened(ours, kept), [row.tolist() for row in unbiased], kept, rtol=1e-5, atol=1e-6)


@parity("openrlhf_reinforce_baseline")
def test_group_means_then_whitening(title: str) -> None:
    """Ours composes it of two functions; theirs has the population variance."""
    theirs = parity.case(title)
    kept = matrix(theirs["inputs"]["mask"]).bool()
    centred, _ = group_advantage(EIGHT, FOURS, std=False)
    ours, _ = whiten(centred.double()[:, None].expand(kept.shape)[kept], kept[kept])
    tokens = int(kept.sum())
    same(ours * (tokens / (tokens - 1)) ** 0.5, matrix(theirs["advantages"])[kept].tolist(), **FLOAT32)


@parity("slime_rpp_gamma1", "slime_rpp_kl0.1_k1")
def test_reinforce_plus_plus_as_in_slime(title: str) -> None:
    theirs, kept = parity.case(title), masks()
    kl = kl_rows() if "kl" in title else None
    compare(returns(kept, 1.0, kl=kl, beta=0.1 if kl else 0.0), theirs["returns"], kept, **FLOAT32)


@parity("slime_rppb_white", "slime_rppb_kl0.1")
def test_slimes_baseline_form_penalises_a_token_for_its_own_kl_alone(title: str) -> None:
    """Ours sums the KL that is to come, as a reward is; without KL both agree, whitening included."""
    theirs, kept = parity.case(title), masks()
    given = parity.inputs("groups")
    centred, _ = group_advantage(given["rewards"], given["group_ids"], std=False)
    broadcast = [value.double().expand(len(mask)) for value, mask in zip(centred, kept, strict=True)]
    if title == "slime_rppb_white":
        compare(whitened(broadcast, kept), theirs["advantages"], kept, **FLOAT32)
        return
    own = [row - 0.1 * kl for row, kl in zip(broadcast, kl_rows(), strict=True)]
    compare(own, theirs["advantages"], kept, **FLOAT32)


def gae_rows(kept: list[Tensor], gamma: float, lam: float, **kl: Any) -> tuple[list[Tensor], list[Tensor]]:
    advantages, sums = [], []
    penalties = kl_rows() if kl else [None] * 11
    rewards = parity.inputs("groups")["rewards"]
    for reward, values, mask, penalty in zip(rewards, rows("values"), kept, penalties, strict=True):
        advantage, total, used = gae(reward, values, mask, gamma=gamma, lam=lam, kl_T=penalty, **kl)
        assert torch.equal(used, mask)
        advantages.append(advantage)
        sums.append(total)
    return advantages, sums


@parity("verl_gae_g1.0_l1.0", "verl_gae_g0.99_l0.95", "verl_gae_noholes", "areal_gae_g0.99_l0.95")
def test_gae_skips_what_is_not_kept_as_in_verl_and_areal(title: str) -> None:
    theirs, kept = parity.case(title), masks(title)
    gamma, lam = (1.0, 1.0) if "g1.0" in title else (0.99, 0.95)
    advantages, sums = gae_rows(kept, gamma, lam)
    close = FLOAT32 if title.startswith("areal") else {"rtol": 1e-7}
    compare(sums, theirs["returns"], kept, **close)
    compare(advantages, theirs.get("raw_advantages") or theirs["advantages"], kept, **close)
    if "advantages_whitened" in theirs:
        compare(whitened(advantages, kept), theirs["advantages_whitened"], kept, rtol=1e-7)


@parity("openrlhf_gae_noholes")
def test_gae_without_holes_agrees_with_openrlhf(title: str) -> None:
    theirs, kept = parity.case(title), masks(title)
    advantages, sums = gae_rows(kept, 0.99, 0.95)
    compare(sums, theirs["returns"], kept, **FLOAT32)
    compare(advantages, theirs["raw_advantages"], kept, **FLOAT32)


@parity("slime_gae_g0.99_l0.95", "slime_gae_kl0.1")
def test_slimes_gae_takes_holes_for_states(title: str) -> None:
    """So it agrees where every token is kept, and only there."""
    theirs = parity.case(title)
    whole = [torch.ones_like(mask) for mask in masks()]
    kl: dict[str, Any] = {"kl_coefficient": 0.1} if "kl" in title else {}
    advantages, sums = gae_rows(whole, 0.99, 0.95, **kl)
    compare(advantages, theirs["advantages"], whole, **FLOAT32)
    compare(sums, theirs["returns"], whole, **FLOAT32)
    with_holes, _ = gae_rows(masks(), 0.99, 0.95, **kl)
    assert abs(float(with_holes[0][0]) - theirs["advantages"][0][0]) > 0.02


@needs_reference
def test_a_batch_baseline_is_the_whitened_plain_reward() -> None:
    """Per sample and weighed by kept tokens, it is REINFORCE++ with gamma 1 of verl, token for token."""
    kept = masks()
    given = parity.inputs("groups")
    ours, mask = batch_baseline_advantage(given["rewards"], [int(row.sum()) for row in kept])
    assert mask.all()
    compare([value.expand(len(row)) for value, row in zip(ours.double(), kept, strict=True)],
            [row.tolist() for row in whitened(returns(kept, 1.0), kept)], kept, **FLOAT32)  # fmt: skip


@gopd("gopd_lambda0", "gopd_lambda0.5", "gopd_lambda2", "gopd_nobase")
def test_extrapolated_distillation(title: str) -> None:
    theirs = gopd.case(title)
    batch = gopd.inputs("batch")
    teacher, base, old = (matrix(batch[key]) for key in ("teacher_log_probs", "base_log_probs", "old_log_probs"))
    if title == "gopd_nobase":  # theirs ignores lambda without base log-probs, ours says so
        with pytest.raises(ValueError, match="extrapolates"):
            extrapolated_advantage(teacher, None, old, scale=1.25)
        ours, mask = extrapolated_advantage(teacher, None, old, scale=1.0)
    else:
        ours, mask = extrapolated_advantage(teacher, base, old, scale=theirs["inputs"]["lam"])
    same(ours, theirs["advantages"])
    assert mask.all()


@needs_reference
@pytest.mark.parametrize("file", [parity, gopd], ids=lambda file: file.name)
def test_every_case_has_a_test(file: Parity) -> None:
    file.check_complete()
