"""A sample as the learner takes it: one turn's tokens and its signals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class InvalidSample(ValueError):
    """A sample that must not be trained. `reason` is a drop reason of the contract."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSample:
    """One turn: ids and behaviour log-probs as the engine gave them, and its signals.

    `prompt_ids` int32 [P], `response_ids` int32 [R], `response_logprobs` float32 [R] in nats, `reward` in {-1, 0, +1}
    or None, `teacher_logprobs` float32 [R] of exactly the response ids, or None. `truncated`: the answer was cut off
    at the length limit. `hinted_prompt_ids` int32: the prompt with the hint in it, for a teacher inside the learner.
    `staleness`: versions between its oldest token and the weights that learn from it, where known.

    `teacher_topk_ids` int32 [R, K] and `teacher_topk_logprobs` float32 [R, K]: the teacher's likeliest entries in each
    place, and after them others that it scored (an id of -1: none). `group_id`: the candidates of one prompt share it.
    `earlier_rewards`: rewards of the session's turns before this one that the run has put into micro-batches, in order;
    None where a turn has none.

    Of a turn that is known as text alone the ids are the tokenizer's and `response_logprobs` is None. `pair`: name of
    the pair that it is compared in, and whether it is the better one. `correction_ids` int32: what a person wrote in
    its place, the better one of a pair of its own.
    """

    sample_id: str
    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    response_logprobs: NDArray[np.float32] | None
    reward: float | None = None
    teacher_logprobs: NDArray[np.float32] | None = None
    truncated: bool = False
    hinted_prompt_ids: NDArray[np.int32] | None = None
    staleness: int | None = None
    teacher_topk_ids: NDArray[np.int32] | None = None
    teacher_topk_logprobs: NDArray[np.float32] | None = None
    group_id: str | None = None
    earlier_rewards: tuple[float | None, ...] = ()
    pair: tuple[str, bool] | None = None
    correction_ids: NDArray[np.int32] | None = None

    def check(self) -> None:
        """Refuse what cannot be trained; nothing is ever padded or cut to fit.

        Raises:
            InvalidSample: with the reason `no_tokens`, `logprob_length_mismatch`, `non_finite_logprob` or
                `teacher_length_mismatch`.
        """
        length = len(self.response_ids)
        if not len(self.prompt_ids) or not length:
            raise InvalidSample("no_tokens", f"{len(self.prompt_ids)} prompt ids, {length} response ids")
        if self.response_logprobs is not None and len(self.response_logprobs) != length:
            raise InvalidSample(
                "logprob_length_mismatch", f"{len(self.response_logprobs)} log-probs for {length} response ids"
            )
        if self.response_logprobs is not None and not np.isfinite(self.response_logprobs).all():
            raise InvalidSample("non_finite_logprob", "a behaviour log-prob is not finite")
        for scores in (self.teacher_logprobs, self.teacher_topk_ids, self.teacher_topk_logprobs):
            if scores is not None and len(scores) != length:
                raise InvalidSample(
                    "teacher_length_mismatch", f"{len(scores)} teacher scores for {length} response ids"
                )
