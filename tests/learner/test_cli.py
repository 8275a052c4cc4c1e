"""`hindstream learner run` and `hindstream weights list|show|verify`, as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from learner.checkpoints import version_dir
from tests.learner.learning import Learning, mixed

pytestmark = pytest.mark.stack


def hindstream(learning: Learning, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    recipe = learning.directory / "recipe.json"
    recipe.write_bytes(msgspec.json.encode(learning.recipe))
    environment = {
        "HINDSTREAM_HOME": str(learning.directory / "home"),
        "HINDSTREAM_MODEL": str(learning.directory / "base"),
        "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": learning.bootstrap,
        "HINDSTREAM_KAFKA__PARTITIONS": "2",
        "HINDSTREAM_DATABASE__URL": learning.url,
        "HINDSTREAM_RUN__NAME": learning.run,
        "HINDSTREAM_RUN__POLICY": learning.policy,
        "HINDSTREAM_RUN__RECIPE": str(recipe),
        "OMP_WAIT_POLICY": "PASSIVE",
        "COLUMNS": "160",
    }
    return subprocess.run(
        [sys.executable, "-m", "hindstream", *arguments],
        env=os.environ | environment | more,
        cwd=learning.directory,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_from_a_micro_batch_to_a_verified_version(learning: Learning) -> None:
    message = learning.add_batch(mixed(0))
    ran = hindstream(learning, "learner", "run", "--stop-after", "1")
    assert (ran.returncode, "micro-batch 1: version 1, 4 trained, 0 dropped" in ran.stderr) == (0, True), ran.stderr

    listed = hindstream(learning, "weights", "list")
    assert listed.returncode == 0, listed.stderr
    assert "base model" in listed.stdout
    assert learning.run in listed.stdout
    assert listed.stdout.count("on disk") == 2

    shown = json.loads(hindstream(learning, "weights", "show", "1").stdout)
    assert (shown["version"], shown["parent_version"], shown["run"]) == (1, 0, learning.run)
    assert shown["micro_batch"]["micro_batch_id"] == message.micro_batch_id
    assert shown["recipe"]["digest"] == learning.recipe.digest()
    assert shown["step"]["samples_trained"] == shown["turns_trained"] == 4
    assert shown["manifest"]["files"]["model.safetensors"]["bytes"] > 0

    whole = hindstream(learning, "weights", "verify", "1")
    assert (whole.returncode, whole.stdout) == (0, "version 1: whole\n")
    file = version_dir(learning.directory / "home" / "weights", "p", 1) / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    harmed = hindstream(learning, "weights", "verify")
    assert harmed.returncode == 1
    assert "version 0: whole" in harmed.stdout
    assert f"version 1: {file} was changed" in harmed.stdout


def test_a_users_mistake_is_one_line(learning: Learning, tmp_path: Path) -> None:
    learning.add_batch(mixed(0))
    for arguments, more, says in (
        (("learner", "run"), {"HINDSTREAM_RUN__RECIPE": "binary-rl"}, "A run keeps its recipe"),
        (("learner", "run"), {"HINDSTREAM_RUN__POLICY": "q"}, "trains policy 'p', not 'q'"),
        (("weights", "show", "7"), {}, "has no version 7"),
        (("weights", "list"), {"HINDSTREAM_RUN__POLICY": "nobody"}, "has no weight version"),
    ):
        ran = hindstream(learning, *arguments, **more)
        assert ran.returncode == 2
        assert says in ran.stderr
        assert "Traceback" not in ran.stderr
