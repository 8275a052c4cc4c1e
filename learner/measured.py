"""What must be known of models before the loss of a micro-batch is: measured in passes without gradient.

Shapes: N response tokens of the micro-batch, samples in order; K vocabulary entries a token. Everything is float32 on
the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Entries:
    """Several entries a token. `ids` int64 [N, K]; `own` [N, K]: the policy's log-probs of them before the step, None
    where nobody reads them; `teacher` [N, K]: the teacher's, NaN where it gave none."""

    ids: Tensor
    own: Tensor | None
    teacher: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """`proximal` [N]: the policy's own log-probs before the step; `reference` [N]; `values` [N]: the critic's;
    `teacher` [N]: log-probs by a teacher inside the learner, NaN where it did not look. None: not asked for."""

    proximal: Tensor | None = None
    reference: Tensor | None = None
    values: Tensor | None = None
    teacher: Tensor | None = None
    entries: Entries | None = None
