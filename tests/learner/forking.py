"""Learners in processes of their own, forked from one that has torch loaded already."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO

from tests.learner.learning import Learning

ROOT = Path(__file__).parents[2]
_LONGEST_S = 90.0
"""A learner here takes a second or two alone."""


class Learners:
    """Starts `tests.learner.learner_process`; one learner at a time."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.learner.learner_process"],
            cwd=ROOT,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line that lies in a buffer of ours would not be seen by select
        )

    def start(self, learning: Learning, **more: object) -> int:
        """A learner's process id. `point`, `count`: where it dies."""
        plain = {name: value for name, value in asdict(learning.config()).items() if name != "fault"} | more
        stdin = self._pipe(self._server.stdin)
        stdin.write(json.dumps(plain, default=str).encode() + b"\n")
        self._child = int(self._pipe(self._server.stdout).readline())
        return self._child

    def wait(self) -> int:
        """The exit code of the learner that was started, or minus the signal that ended it. One that does not end is
        killed."""
        stdout = self._pipe(self._server.stdout)
        if not select.select([stdout], [], [], _LONGEST_S)[0]:
            os.kill(self._child, signal.SIGKILL)
        return int(stdout.readline())

    def run(self, learning: Learning, **more: object) -> int:
        """Start one and wait for its end."""
        self.start(learning, **more)
        return self.wait()

    def close(self) -> None:
        """End the process that forks, and what it still runs."""
        self._pipe(self._server.stdin).close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.send_signal(signal.SIGKILL)
            self._server.wait()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe
