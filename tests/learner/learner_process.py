"""Learners in processes of their own that die at a chosen point.

`python -m tests.learner.learner_process` imports torch once, reads one learner's configuration a line (JSON) and forks
a process for each: that starts in a tenth of a second, where an interpreter with torch takes seconds. For each it
prints its process id, and when it has ended, how.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
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


def learn(plain: dict[str, Any]) -> None:
    """Run the learner that `plain` describes."""
    fault = Dies(plain.pop("point", ""), plain.pop("count", 1))
    paths = {name: Path(plain.pop(name)) for name in ("model_dir", "weights_dir")}
    run_learner(LearnerConfig(**plain, **paths, fault=fault))


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                learn(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
