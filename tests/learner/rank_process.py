"""Ranks of one learner in processes of their own.

`python -m tests.learner.rank_process` imports torch once, reads one job a line (JSON) and forks a process for each of
its ranks. It prints how each ended.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import Any

import torch

from learner.config import RanksConfig
from tests.learner import rank_jobs


def work(job: dict[str, Any], ranks: RanksConfig) -> None:
    """One rank's part; the first one's result is kept where the job says."""
    torch.set_num_threads(1)
    result = getattr(rank_jobs, job["name"])(ranks, **job["arguments"])
    if not ranks.rank and job["out"]:
        torch.save(result, job["out"])


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryDirectory() as place:
            children = []
            for rank in range(job["ranks"]):
                ranks = RanksConfig(
                    rank=rank, local_rank=rank, world_size=job["ranks"], init_method=f"file://{place}/meeting"
                )
                children.append(os.fork())
                if not children[-1]:
                    try:
                        work(job, ranks)
                    except BaseException:
                        traceback.print_exc()
                        os._exit(1)
                    os._exit(0)
            ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    main()
