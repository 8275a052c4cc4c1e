"""Several processes as one learner, started by torchrun: who this one is, and sums over all of them.

Every rank has the same samples and builds the same objective of the whole micro-batch. It runs its share of the forward
passes and holds its part of the weights (`learner.sharding`). So what a step says and does is the same on every rank,
and with one rank nothing here does anything.

Shapes: N response tokens of the micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from learner.collate import Forward
from learner.config import RanksConfig
from learner.errors import LearnerStopped

log = logging.getLogger(__name__)

_STEP_LIMIT = timedelta(minutes=30)
"""The longest that a rank waits for another in the middle of a step or a save. Ranks begin together and have equal
shares, so only reading the base model from a slow disk comes near it. A rank that ended is noticed at once."""
_IDLE_LIMIT = timedelta(days=365)
"""The longest that ranks wait for the first one's next word: traffic may pause for days."""

EMPTY = Forward(
    input_ids=torch.zeros(1, 1, dtype=torch.long),
    position_ids=torch.zeros(1, 1, dtype=torch.long),
    lengths=(1,),
    positions=torch.zeros(0, dtype=torch.long),
    targets=torch.zeros(0, dtype=torch.long),
    flat=torch.zeros(0, dtype=torch.long),
)
"""A pass of one token whose log-prob nobody asks for: its gradient is zero, and it takes part in what all ranks do
together."""


@contextmanager
def ranks_joined(config: RanksConfig | None, device: str) -> Iterator[None]:
    """Be one of the ranks inside the `with`; alone where `config` is None.

    On GPUs each rank takes the one of its number on its machine, and `device` must be plain "cuda".

    Raises:
        LearnerStopped: the other ranks were not found, or `device` names one GPU for all.
    """
    if config is None or config.world_size == 1:
        yield
        return
    on_gpu = device != "cpu"
    if on_gpu and device != "cuda":
        raise LearnerStopped(
            f"{config.world_size} ranks cannot all use {device}: set HINDSTREAM_LEARNER__DEVICE to cuda, and each "
            "takes the GPU of its own number"
        )
    if on_gpu:
        torch.cuda.set_device(config.local_rank)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=config.init_method,
            rank=config.rank,
            world_size=config.world_size,
            timeout=_STEP_LIMIT,
        )
    except (ValueError, RuntimeError) as err:
        raise LearnerStopped(f"rank {config.rank} of {config.world_size} did not find the others: {err}") from err
    try:
        _words.append(dist.new_group(backend="gloo", timeout=_IDLE_LIMIT))
        log.info("rank %d of %d", config.rank, config.world_size)
        yield
    finally:
        _words.clear()
        with suppress(RuntimeError):  # a rank that is gone
            dist.destroy_process_group()


_words: list[dist.ProcessGroup] = []
"""The group in which the first rank tells the others what comes next."""


def world_size() -> int:
    """How many ranks there are; 1 where this process is alone."""
    return dist.get_world_size() if _words else 1


def rank() -> int:
    """This process's number; 0 decides."""
    return dist.get_rank() if _words else 0


def tell(word: object) -> None:
    """The first rank's: every other hears `word`. Nothing where there is none.

    Raises:
        LearnerStopped: a rank is gone.
    """
    if not _words:
        return
    with rank_gone():
        dist.broadcast_object_list([word], src=0, group=_words[0])


def hear() -> object:
    """What the first rank tells next, however long it takes.

    Raises:
        LearnerStopped: a rank is gone.
    """
    heard: list[object] = [None]
    with rank_gone():
        dist.broadcast_object_list(heard, src=0, group=_words[0])
    return heard[0]


@contextmanager
def rank_gone() -> Iterator[None]:
    """Say in words that another rank ended.

    Raises:
        LearnerStopped: from inside, where the connection to another rank broke.
    """
    try:
        yield
    except RuntimeError as err:
        if not _words or not (isinstance(err, dist.DistError) or "gloo" in str(err)):
            raise
        what = str(err).split("] ", 1)[-1].split(". ")[0]  # without the place in gloo's source, and its advice
        raise LearnerStopped(
            f"rank {rank()} of {world_size()} lost another rank ({what}); its own output says why it ended. Start all "
            "again: nothing is lost"
        ) from err


def share(forwards: Sequence[Forward]) -> list[Forward]:
    """This rank's of `forwards`, as many on every rank: `EMPTY` ones fill up. The largest passes run side by side,
    since every layer waits for the slowest rank."""
    ranks = world_size()
    if ranks == 1:
        return list(forwards)
    largest_first = sorted(forwards, key=lambda forward: -forward.input_ids.shape[1])
    mine = largest_first[rank() :: ranks]
    return mine + [EMPTY] * (-(-len(forwards) // ranks) - len(mine))


def total(values: Sequence[float]) -> list[float]:
    """Sums over the ranks, in float64."""
    if world_size() == 1:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    summed: list[float] = sums.tolist()
    return summed


def filled(values: Tensor, forwards: Sequence[Forward]) -> Tensor:
    """`values` [N, ...], on the CPU, of which this rank filled the rows of its `forwards`, with every rank's rows, bit
    for bit; rows of no pass stay as they are."""
    if world_size() == 1:
        return values
    flat = torch.cat([forward.flat for forward in forwards])
    rows, mine = torch.zeros_like(values), torch.zeros(len(values), dtype=torch.int32)
    rows[flat], mine[flat] = values[flat], 1
    dist.all_reduce(rows)
    dist.all_reduce(mine)
    there = (mine > 0).reshape(-1, *(1,) * (values.dim() - 1))
    return torch.where(there, rows, values)
