"""Settings: which source wins, what a mistake says, and that no secret is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hindstream.cli.config import rows
from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings

HINDSTREAM = [sys.executable, "-m", "hindstream.cli.main"]


def shown() -> dict[str, tuple[str, str]]:
    return {row.name: (row.value, row.source) for row in rows(load_settings())}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_environment_wins_over_file_wins_over_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hindstream.toml").write_text('[kafka]\nport = 9001\npartitions = 3\n[run]\nname = "night"\n')
    monkeypatch.setenv("HINDSTREAM_KAFKA__PORT", "9002")
    monkeypatch.setenv("HINDSTREAM_GATEWAY", '{"port": 9003}')
    settings = shown()
    assert settings["kafka.port"] == ("9002", "env HINDSTREAM_KAFKA__PORT")
    assert settings["kafka.partitions"] == ("3", "file hindstream.toml")
    assert settings["run.name"] == ("night", "file hindstream.toml")
    assert settings["gateway.port"] == ("9003", "env HINDSTREAM_GATEWAY")
    assert settings["kafka.heap_mb"] == ("512", "default")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HINDSTREAM_DATABASE__URL", "postgresql://us:s3cr3t@host:5432/db"),
        ("HINDSTREAM_DATABASE__URL", "postgresql://us:o@d/s3cr3t?@host:5432/db"),
        ("HINDSTREAM_DATABASE__URL", "postgresql://us@host/db?password=s3cr3t&x=1"),
        ("HINDSTREAM_POLICY__URL", "https://us:s3cr3t@host/"),
        ("HINDSTREAM_POLICY__URL", "https://host/?api_key=s3cr3t"),
        ("HINDSTREAM_POLICY__API_KEY", "s3cr3t"),
        ("HINDSTREAM_VLLM__EXTRA_ARGS", '["--api-key", "s3cr3t"]'),
    ],
)
def test_config_show_prints_no_secret(name: str, value: str) -> None:
    environment = os.environ | {name: value}
    for arguments in (["config", "show"], ["config", "show", "--explain"]):
        ran = subprocess.run(
            [*HINDSTREAM, *arguments], capture_output=True, text=True, env=environment, check=True, timeout=60
        )
        assert "s3cr3t" not in ran.stdout + ran.stderr
        assert "******" in ran.stdout
        assert name in ran.stdout


def test_a_secret_is_not_in_the_repr_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", "postgresql://us:s3cr3t@host/db")
    monkeypatch.setenv("HINDSTREAM_JUDGE__API_KEY", "s3cr3t")
    assert "s3cr3t" not in repr(load_settings())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HINDSTREAM_KAFKKA__PORT", "1", "HINDSTREAM_KAFKKA__PORT is no setting of Hindstream; did you mean"),
        ("HINDSTREAM_KAFKA__PROT", "1", "kafka.prot (from HINDSTREAM_KAFKA__PROT)"),
        ("HINDSTREAM_KAFKA__PORT", "many", "kafka.port (from HINDSTREAM_KAFKA__PORT)"),
        ("HINDSTREAM_VLLM__DTYPE", "int4", "vllm.dtype (from HINDSTREAM_VLLM__DTYPE)"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_variable(name: str, value: str, said: str) -> None:
    ran = subprocess.run(
        [*HINDSTREAM, "config", "show"],
        capture_output=True,
        text=True,
        env=os.environ | {name: value},
        check=False,
        timeout=60,
    )
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "hindstream.toml").write_text("[kafka\n")
    with pytest.raises(UserError, match=r"hindstream\.toml"):
        load_settings()


def test_given_addresses_win_and_missing_ones_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS", "kafka1:9092,kafka2:9092")
    monkeypatch.setenv("HINDSTREAM_POLICY__URL", "http://models:8000/")
    monkeypatch.setenv("HINDSTREAM_TEACHER__URL", "http://teacher:8000")
    resolved = resolve_endpoints(load_settings())
    assert resolved.bootstrap_servers == "kafka1:9092,kafka2:9092"
    assert resolved.policy_url == "http://models:8000"
    assert resolved.judge_url == "http://models:8000"
    assert resolved.teacher_url == "http://teacher:8000"
    with pytest.raises(UserError, match=r"hindstream up.*HINDSTREAM_DATABASE__URL"):
        _ = resolved.database_url
