"""A learner in a process of its own that dies at a chosen point: `python -m tests.learner.learner_process JSON`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from learner.config import LearnerConfig
from learner.service import run_learner

DIED = 9


class Dies:
    """Ends the process, as `kill -9` would, the `count`-th time that `point` is reached."""

    def __init__(self, point: str, count: int) -> None:
        self.point, self.left = point, count

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                os._exit(DIED)


def main(plain: dict[str, Any]) -> None:
    point, count = plain.pop("point", ""), plain.pop("count", 1)
    paths = {name: Path(plain.pop(name)) for name in ("model_dir", "weights_dir")}
    run_learner(LearnerConfig(**plain, **paths, fault=Dies(point, count)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
