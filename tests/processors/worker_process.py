"""A worker process for tests: `python -m tests.processors.worker_process '{json}'`, killed as processes are."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from processors.batcher import BatcherConfig
from processors.config import RecorderConfig, RunConfig, WorkerConfig
from processors.idle import IdleConfig
from processors.relay import RelayConfig
from processors.worker import run_worker
from schemas.recipes import recipe_named


def main() -> int:
    told = json.loads(sys.argv[1])
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("faust", "mode", "aiokafka", "kafka"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    directory = Path(told["directory"])
    return run_worker(
        WorkerConfig(
            bootstrap_servers=told["bootstrap"],
            database_url=told["url"],
            pool_size=4,
            roles=tuple(told["roles"]),
            run=RunConfig(run="live", policy="policy", recipe=recipe_named("combine")),
            recorder=RecorderConfig(
                topic=told["topic"],
                group_id=told["topic"],
                batch_events=told["batch_events"],
                dead_letter_limit=told["dead_letter_limit"],
                dead_letter_share=told.get("dead_letter_share", 1.0),
                data_dir=directory,
                blob_dir=directory / "blobs",
            ),
            evaluators=None,
            batcher=BatcherConfig(),
            relay=RelayConfig(bootstrap_servers=told["bootstrap"]),
            idle=IdleConfig(idle_s=told["idle_s"], every_s=0.2),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
