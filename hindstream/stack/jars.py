"""The broker's jars: pinned with checksums, fetched once by Maven or by download, shared by every
checkout."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hindstream.errors import UserError
from hindstream.settings import child_environment
from hindstream.stack.caches import made_whole

HERE = Path(__file__).parent
POM = HERE / "broker_pom.xml"
LIST = HERE / "broker_jars.txt"
# Maven fetches 44 MB and its own plugins; on a slow line that is minutes.
MAVEN_TIMEOUT_S = 900
DOWNLOAD_TIMEOUT_S = 60


@dataclass(frozen=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Where a Maven repository keeps it."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file}"


def pinned() -> list[Jar]:
    """The jars that the broker is made of, from the committed list."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    jars = []
    for line in lines:
        coordinates, sha256 = line.split()
        group, artifact, version = coordinates.split(":")
        jars.append(Jar(group, artifact, version, sha256))
    return jars


def ensure(cache: Path, repository: str | None, java: Path, say: Callable[[str], None]) -> Path:
    """The directory that holds exactly the pinned jars; made on first use, and complete once it has its name.

    Raises:
        UserError: neither Maven nor a repository is there, the network is not, or a jar is not the pinned
        one.
    """
    jars = pinned()
    final = cache / f"kafka-{hashlib.sha256(LIST.read_bytes()).hexdigest()[:12]}"
    if final.is_dir():
        return final
    maven = shutil.which("mvn")
    if not maven and not repository:
        raise UserError(
            "the broker's jars are not here yet, and neither is Maven to fetch them: install it "
            "(Debian and Ubuntu: apt-get install maven), or set HINDSTREAM_KAFKA__MAVEN_REPOSITORY to the "
            "base address of a Maven repository that has Apache Kafka"
        )
    with made_whole(final) as directory:
        if maven:
            say(f"getting {len(jars)} jars of Apache Kafka with Maven (once)")
            _by_maven(maven, directory, java)
        elif repository:
            _by_download(repository, jars, directory, say)
        _verify(jars, directory)
    return final


def _by_maven(maven: str, target: Path, java: Path) -> None:
    # Maven writes `target/` beside the pom, so it gets a copy.
    work = target / "maven"
    work.mkdir()
    shutil.copy(POM, work / "pom.xml")
    command = [
        maven,
        "--quiet",
        "--batch-mode",
        "--file",
        str(work / "pom.xml"),
        "dependency:copy-dependencies",
    ]
    command += [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    if not _has_home():
        command.append(f"-Dmaven.repo.local={target.parent / 'maven'}")
    environment = child_environment()
    environment.setdefault("JAVA_HOME", str(java.resolve().parent.parent))
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=MAVEN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"Maven did not finish in {MAVEN_TIMEOUT_S} s; is there a network? Try again") from None
    if ran.returncode != 0:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout + ran.stderr)
        lines = [line for line in plain.splitlines() if "ERROR" in line] or ["no message"]
        raise UserError(f"Maven could not get the broker's jars; is there a network? It says: {lines[0].strip()}")
    shutil.rmtree(work)


def _has_home() -> bool:
    """Whether Java finds a home for Maven's own cache: it asks the account's entry, not the environment."""
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return False
    return os.access(home, os.W_OK | os.X_OK)


def _by_download(repository: str, jars: list[Jar], target: Path, say: Callable[[str], None]) -> None:
    for number, jar in enumerate(jars, 1):
        if number % 10 == 1:
            say(f"downloading jar {number} of {len(jars)} of Apache Kafka (once)")
        address = f"{repository.rstrip('/')}/{jar.path}"
        try:
            with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT_S) as answer:
                (target / jar.file).write_bytes(answer.read())
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise UserError(
                f"{address} could not be fetched ({reason}); is there a network, and is "
                "HINDSTREAM_KAFKA__MAVEN_REPOSITORY the base address of a Maven repository?"
            ) from None


def _verify(jars: list[Jar], directory: Path) -> None:
    wanted = {jar.file: jar.sha256 for jar in jars}
    present = {path.name for path in directory.iterdir()}
    if present != set(wanted):
        odd = ", ".join(sorted(present ^ set(wanted)))
        raise UserError(f"the broker's jars are not those of {LIST.name}: {odd} (missing, or not listed)")
    for name, digest in wanted.items():
        if hashlib.sha256((directory / name).read_bytes()).hexdigest() != digest:
            raise UserError(f"{name} is not the pinned one (sha256 differs from {LIST.name}); fetch it again")
