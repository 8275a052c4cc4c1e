"""How samples are put together for a forward pass: one after the other in a single row, without padding.

Shapes: T tokens of the samples of a pass, N response tokens of all samples in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from learner.samples import TrainingSample


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward pass: some samples, packed into one row.

    `input_ids` int64 [1, T]: prompt and response of each sample. `position_ids` int64 [1, T]: the place of each token
    in its own sample. `lengths`: tokens of each sample; attention stays within these segments. `positions` int64 [N]:
    place in the row of the hidden state that predicts each response token, so the last prompt token's for the first.
    `targets` int64 [N]. `flat` int64 [N]: place of each token among all response tokens of the micro-batch, samples in
    order.
    """

    input_ids: Tensor
    position_ids: Tensor
    lengths: tuple[int, ...]
    positions: Tensor
    targets: Tensor
    flat: Tensor


def plan_forwards(
    samples: Sequence[TrainingSample], tokens_per_forward: int, carried: Sequence[bool] | None = None
) -> list[Forward]:
    """Pack samples into passes of at most `tokens_per_forward` tokens; a longer sample is alone in its pass. Longest
    first, each into the first pass that has room.

    A sample whose `carried` is False is in no pass: no loss would read its log-probs.

    Raises:
        ValueError: `tokens_per_forward` is below 1.
    """
    if tokens_per_forward < 1:
        raise ValueError(f"tokens_per_forward must be at least 1, not {tokens_per_forward}")
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in samples]
    places = [place for place in range(len(samples)) if carried is None or carried[place]]
    packs: list[list[int]] = []
    room: list[int] = []
    for place in sorted(places, key=lambda place: (-lengths[place], place)):
        fits = next((pack for pack, left in enumerate(room) if left >= lengths[place]), None)
        if fits is None:
            packs.append([place])
            room.append(tokens_per_forward - lengths[place])
        else:
            packs[fits].append(place)
            room[fits] -= lengths[place]
    starts = [0, *accumulate(len(s.response_ids) for s in samples)]
    return [_forward(samples, pack, starts) for pack in packs]


def _forward(samples: Sequence[TrainingSample], pack: list[int], starts: list[int]) -> Forward:
    chosen = [samples[place] for place in pack]
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in chosen]
    begins = [0, *accumulate(lengths)][:-1]
    ids = np.concatenate([ids for s in chosen for ids in (s.prompt_ids, s.response_ids)])
    positions, flat = [], []
    for sample, begin, place in zip(chosen, begins, pack, strict=True):
        first, count = begin + len(sample.prompt_ids) - 1, len(sample.response_ids)
        positions.append(torch.arange(first, first + count))
        flat.append(torch.arange(starts[place], starts[place] + count))
    return Forward(
        input_ids=torch.from_numpy(ids.astype(np.int64))[None],
        position_ids=torch.cat([torch.arange(length) for length in lengths])[None],
        lengths=tuple(lengths),
        positions=torch.cat(positions),
        targets=torch.from_numpy(np.concatenate([s.response_ids for s in chosen]).astype(np.int64)),
        flat=torch.cat(flat),
    )
