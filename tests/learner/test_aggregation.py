"""Token weights: by hand, whatever the split, and against peers, who disagree about empty rows and constants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from vectors import case, inputs, matrix, needs_reference, same

from learner.aggregation import Aggregation, token_weights

OWNERS = torch.tensor([0, 0, 0, 0, 1, 1])


def aggregate(aggregation: Aggregation, mask: str = "mask", constant: float | None = None) -> Tensor:
    given = inputs("06_aggregation", "loss")
    loss, kept = matrix(given["loss_mat"]), matrix(given[mask]).bool()
    owners = torch.arange(len(loss))[:, None].expand_as(loss).reshape(-1)
    weights = token_weights(kept.reshape(-1), owners, aggregation, constant=constant)
    return (weights.double() * loss.reshape(-1)).sum()


def close(actual: Tensor | float, expected: float) -> None:
    """Weights are float32, so sums agree to that."""
    same(actual, expected, rtol=1e-6, atol=1e-7)


def test_by_hand() -> None:
    mask = torch.ones(6).bool()
    assert token_weights(mask, OWNERS, "token_mean").tolist() == pytest.approx([1 / 6] * 6)
    assert token_weights(mask, OWNERS, "sequence_mean").tolist() == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    assert token_weights(mask, OWNERS, "sequence_sum").tolist() == pytest.approx([1 / 2] * 6)
    assert token_weights(mask, OWNERS, "constant", constant=10).tolist() == pytest.approx([1 / 20] * 6)


def test_an_answer_of_one_token_is_a_sequence() -> None:
    owners, mask = torch.tensor([0, 1, 1, 2]), torch.tensor([True, True, True, False])
    assert token_weights(mask, owners, "sequence_mean").tolist() == [0.5, 0.25, 0.25, 0.0]
    assert token_weights(mask, owners, "sequence_sum").tolist() == [0.5, 0.5, 0.5, 0.0]
    halved = token_weights(mask, owners, "constant", constant=0.5)
    assert halved.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert halved.dtype == torch.float32


def test_what_is_masked_is_in_no_divisor() -> None:
    """A truncated answer of 4 tokens beside a whole one of 4 leaves a divisor of 4."""
    owners, mask = torch.arange(2).repeat_interleave(4), torch.tensor([True] * 4 + [False] * 4)
    for aggregation in ("token_mean", "sequence_mean"):
        assert token_weights(mask, owners, aggregation).tolist() == [0.25] * 4 + [0.0] * 4
    assert token_weights(mask, owners, "sequence_sum").tolist() == [1.0] * 4 + [0.0] * 4


def test_nothing_kept_weighs_nothing() -> None:
    for aggregation in ("token_mean", "sequence_mean", "sequence_sum"):
        assert token_weights(torch.zeros(6).bool(), OWNERS, aggregation).tolist() == [0.0] * 6
        weights = token_weights(torch.ones(6).bool(), OWNERS, aggregation)
        assert weights.dtype == token_weights(torch.zeros(6).bool(), OWNERS, aggregation).dtype == torch.float32


def test_a_constant_must_be_given() -> None:
    for constant in (None, 0.0, -1.0):
        with pytest.raises(ValueError, match="positive constant"):
            token_weights(torch.ones(6).bool(), OWNERS, "constant", constant=constant)
    with pytest.raises(ValueError, match="no aggregation"):
        token_weights(torch.ones(6).bool(), OWNERS, "mean")  # type: ignore[arg-type]


@needs_reference
@pytest.mark.parametrize("rows", ["holes", "one_row_empty"])
def test_peers_agree(rows: str) -> None:
    mask = "mask" if rows == "holes" else "mask_one_row_empty"
    for title in (f"verl_token-mean_{rows}", f"trl_bnpo_{rows}", f"areal_{rows}"):
        close(aggregate("token_mean", mask), case("06_aggregation", title)["loss"])
    close(aggregate("sequence_sum", mask), case("06_aggregation", f"verl_seq-mean-token-sum_{rows}")["loss"])
    close(aggregate("constant", mask, constant=1024), case("06_aggregation", f"verl_norm_const1024_{rows}")["loss"])
    if rows == "holes":
        close(aggregate("sequence_mean", mask), case("06_aggregation", "verl_seq-mean-token-mean_holes")["loss"])
    else:
        openrlhf = case("06_aggregation", "openrlhf_one_row_empty")
        close(aggregate("sequence_mean", mask), openrlhf["seq_mean_token_mean"])
        close(aggregate("token_mean", mask), openrlhf["token_mean"])


@needs_reference
def test_an_empty_row_leaves_our_divisor_but_stays_in_those_of_trl_and_slime() -> None:
    ours = float(aggregate("sequence_mean", "mask_one_row_empty"))  # 4 rows, one empty
    close(ours * 3 / 4, case("06_aggregation", "trl_grpo_one_row_empty")["loss"])
    close(ours * 3, case("06_aggregation", "slime_one_row_empty")["sum_of_sample_mean"])
    constant = float(aggregate("constant", "mask_one_row_empty", constant=1024))
    close(constant * 3 / 4, case("06_aggregation", "trl_dr_grpo_one_row_empty")["loss"])


@needs_reference
def test_the_constant_comes_beside_the_rows_where_older_peers_divide_by_the_constant_alone() -> None:
    ours = float(aggregate("constant", constant=7))  # their constant here: the width, 7
    close(ours, case("06_aggregation", "verl_seq-mean-token-sum-norm_holes")["loss"])
    close(ours * 4, case("06_aggregation", "verl_jan26_seq-mean-token-sum-norm_holes")["loss"])
