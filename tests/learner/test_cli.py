"""`hindstream learner run` and `hindstream weights ...`, as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from hindstream.cli import learner, weights
from hindstream.errors import UserError
from learner.checkpoints import version_dir
from learner.service import run_learner
from tests.learner.learning import Learning, mixed

pytestmark = pytest.mark.stack


def environment_of(learning: Learning) -> dict[str, str]:
    recipe = learning.directory / "recipe.json"
    recipe.write_bytes(msgspec.json.encode(learning.recipe))
    return {
        "HINDSTREAM_HOME": str(learning.directory / "home"),
        "HINDSTREAM_MODEL": str(learning.directory / "base"),
        "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": learning.bootstrap,
        "HINDSTREAM_DATABASE__URL": learning.url,
        "HINDSTREAM_RUN__NAME": learning.run,
        "HINDSTREAM_RUN__POLICY": learning.policy,
        "HINDSTREAM_RUN__RECIPE": str(recipe),
        "OMP_WAIT_POLICY": "PASSIVE",
        "COLUMNS": "160",
    }


def hindstream(learning: Learning, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hindstream", *arguments],
        env=os.environ | environment_of(learning) | more,
        cwd=learning.directory,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


class Command:
    """A command in this process: its output, and the code that it ends with (2: a mistake in a line). An interpreter
    with torch takes seconds to start."""

    def __init__(self, app: Any, learning: Learning, **more: str) -> None:
        self._app = app
        self._environment = environment_of(learning) | more

    def __call__(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(self._app, arguments, env=self._environment)
        if isinstance(done.exception, UserError):
            return 2, str(done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout


def test_from_a_micro_batch_to_a_verified_version(learning: Learning) -> None:
    message = learning.add_batch(mixed(0))
    ran = hindstream(learning, "learner", "run", "--stop-after", "1")
    assert (ran.returncode, "micro-batch 1: version 1, 4 trained, 0 dropped" in ran.stderr) == (0, True), ran.stderr
    run = Command(weights.app, learning)

    code, listed = run("list")
    assert code == 0
    assert "base model" in listed
    assert learning.run in listed
    assert listed.count("on disk") == listed.count("full") == 2

    shown = json.loads(run("show", "1")[1])
    assert (shown["version"], shown["parent_version"], shown["run"]) == (1, 0, learning.run)
    assert shown["micro_batch"]["micro_batch_id"] == message.micro_batch_id
    assert shown["recipe"]["digest"] == learning.recipe.digest()
    assert shown["step"]["samples_trained"] == shown["turns_trained"] == 4
    assert shown["manifest"]["files"]["model.safetensors"]["bytes"] > 0

    assert run("verify", "1") == (0, "version 1: whole\n")
    file = version_dir(learning.directory / "home" / "weights", "p", 1) / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    code, harmed = run("verify")
    assert code == 1
    assert "version 0: whole" in harmed
    assert f"version 1: {file} was changed" in harmed


def test_a_users_mistake_is_one_line(learning: Learning) -> None:
    learning.add_batch(mixed(0))
    for app, arguments, more, says in (
        (learner.app, ("run",), {"HINDSTREAM_RUN__RECIPE": "binary-rl"}, "A run keeps its recipe"),
        (learner.app, ("run",), {"HINDSTREAM_RUN__POLICY": "q"}, "trains policy 'p', not 'q'"),
        (weights.app, ("show", "7"), {}, "has no version 7"),
        (weights.app, ("serve", "--version", "7"), {}, "has no version 7"),
        (weights.app, ("serve", "--version", "0"), {}, "no server to load the version into"),
        (
            weights.app,
            ("serve", "--version", "0", "--url", "http://localhost:1/"),
            {"HINDSTREAM_POLICY__URL": "http://localhost:1"},
            "is the policy's server, which serves the newest version",
        ),
        (weights.app, ("list",), {"HINDSTREAM_RUN__POLICY": "nobody"}, "has no weight version"),
    ):
        code, said = Command(app, learning, **more)(*arguments)
        assert (code, says in said) == (2, True), said
    told = hindstream(learning, "weights", "show", "7")
    assert (told.returncode, "has no version 7" in told.stderr, "Traceback" in told.stderr) == (2, True, False)


def test_deltas_are_kept_copied_fetched_and_made_again(learning: Learning) -> None:
    for version in range(4):
        learning.add_batch(mixed(version))
    home = learning.directory / "home"
    run_learner(
        learning.config(
            stop_after=4, publish="delta", full_every=3, keep_last=2, weights_dir=home / "weights", state_every=2
        )
    )
    options = {"HINDSTREAM_LEARNER__UPLOAD_URL": f"file://{learning.directory}/copies"}
    run = Command(weights.app, learning, HINDSTREAM_LEARNER__KEEP_LAST="2", **options)

    code, out = run("list")
    assert code == 0
    kinds = [[word for word in ("full", "delta", "on disk", "deleted") if word in line] for line in out.splitlines()]
    assert [one for one in kinds if one] == [
        ["full", "on disk"],
        ["delta", "deleted"],
        ["delta", "deleted"],
        ["full", "on disk"],
        ["delta", "on disk"],
    ]
    shown = json.loads(run("show", "4")[1])
    assert (shown["kind"], shown["base_version"]) == ("delta", 3)
    assert shown["manifest"]["made_on"]["threads"] == 1
    assert run("verify") == (0, "version 0: whole\nversion 3: whole\nversion 4: whole\n")

    assert run("rebuild", "2")[0] == 0
    code, out = run("rebuild", "4", "--from-base")
    assert (code, "model.safetensors: the same" in out, "trained again from version 0, 4" in out) == (0, True, True)

    code, out = run("prune", "--dry-run")
    assert (code, "not yet at file://" in out) == (0, True)
    assert run("upload") == (0, f"every version with files here is at {options['HINDSTREAM_LEARNER__UPLOAD_URL']}\n")
    code, out = run("prune", "--dry-run")
    assert "base of version 4" in out
    assert "not yet at" not in out
    assert [copy["status"] for copy in json.loads(run("show", "4")[1])["uploads"]] == ["uploaded"]

    base = version_dir(home / "weights", "p", 3)
    for path in [*base.glob("*.safetensors"), *version_dir(home / "weights", "p", 4).glob("*.delta")]:
        path.unlink()
    assert run("pin", "3") == (
        0,
        "version 3: pinned by user\n"
        "its files were deleted before; `hindstream weights fetch 3` brings them back from their copy\n",
    )
    code, out = run("fetch", "4")
    assert (code, [line.split(";")[0] for line in out.splitlines()]) == (
        0,
        ["version 3 is here again", "version 4 is here again"],
    )
    assert run("verify")[0] == 0
    assert "pin: user" in run("list")[1]
    assert "pinned by user" in run("prune")[1]
    assert run("unpin", "3") == (0, "version 3: no longer pinned by user\n")
    assert run("unpin", "3") == (1, "version 3: was not pinned by user\n")

    delta = version_dir(home / "weights", "p", 4) / "model.safetensors.delta"
    data = bytearray(delta.read_bytes())
    data[-1] ^= 1
    delta.write_bytes(data)
    code, out = run("verify", "4")
    assert (code, out) == (1, f"version 4: {delta} was changed: its SHA-256 is not the manifest's\n")


def test_a_mistake_with_a_versions_files_is_one_line(learning: Learning) -> None:
    learning.add_batch(mixed(0))
    run_learner(learning.config(stop_after=1, weights_dir=learning.directory / "home" / "weights"))
    run = Command(weights.app, learning)
    for arguments, says in (
        (("pin", "7"), "policy 'p' has no version 7"),
        (("rebuild", "0"), "there is no version 0 to be made"),
        (("upload",), "set HINDSTREAM_LEARNER__UPLOAD_URL"),
        (("fetch", "1"), "set HINDSTREAM_LEARNER__UPLOAD_URL"),
    ):
        code, out = run(*arguments)
        assert (code, says in out) == (2, True), out
    nowhere = {"HINDSTREAM_LEARNER__UPLOAD_URL": f"file://{learning.directory}/nothing"}
    code, out = Command(weights.app, learning, **nowhere, HINDSTREAM_LEARNER__UPLOAD_OPTIONS="[1]")("upload")
    assert (code, "must be a JSON object" in out) == (2, True)
    for path in version_dir(learning.directory / "home" / "weights", "p", 1).glob("*.safetensors"):
        path.unlink()
    code, out = Command(weights.app, learning, **nowhere)("fetch", "1")
    assert (code, "there is no whole copy of version 1" in out) == (2, True)
    code, out = Command(weights.app, learning, HINDSTREAM_LEARNER__UPLOAD_URL="nothing://x")("upload")
    assert (code, "not at nothing://x: version 0" in out) == (2, True)
    code, out = Command(weights.app, learning)("rebuild", "1")
    assert (code, "every file came out the same" in out) == (0, True)
