"""Makes one of the project's virtual environments from its lock files, or finds that it is current and does
nothing.

Only the standard library, because it runs before anything is installed:

    python3 tools/make_env.py main     # .venv: the project, its tools and tests
    python3 tools/make_env.py vllm     # .venv-vllm: the model server, whose pins clash with Faust's

An environment is current when its stamp names the digest of all that it is made from. The stamp is removed
before the first change and written after the last, so a failed or interrupted installation has none and is
made again from nothing the next time (the packages already downloaded are in uv's cache).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".hindstream-stamp"
# A registry that stalls for longer than this on one file is retried; wheels of half a gigabyte come in
# pieces.
HTTP_TIMEOUT_S = "120"
# A dropped connection is common on slow networks, and uv keeps what it has: three rounds, with a pause
# between.
ATTEMPTS = 3
PAUSE_S = 5
# Without a terminal uv shows no bars: a line now and then says that the installation is alive.
HEARTBEAT_S = 20

# On a terminal uv draws its own bars; elsewhere its list of three hundred names would bury everything else.
QUIET = () if sys.stderr.isatty() else ("--quiet",)

MAIN_LOCKS = ("requirements-uv.lock", "requirements.lock", "requirements-model.lock")
VLLM_LOCKS = ("requirements-vllm.lock",)


class EnvError(Exception):
    """Something that the person at the keyboard can put right; the message says what and how."""


def say(text: str) -> None:
    print(text, flush=True)


def digest(files: tuple[str, ...]) -> str:
    """The digest of what an environment is made from: lock files, Python version, and where the checkout
    lies."""
    whole = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}\n".encode())
    for name in files:
        whole.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return whole.hexdigest()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Two `make` at once: the second waits for the first, then finds the environment current."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / ".env.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("env: another `make` is building an environment; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def heartbeat(what: str) -> Iterator[None]:
    done = threading.Event()
    begun = time.monotonic()

    def beat() -> None:
        while not done.wait(HEARTBEAT_S):
            say(f"env:   … {what}, {time.monotonic() - begun:.0f} s so far")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        say(f"env:   {what}: {time.monotonic() - begun:.0f} s")


def run(command: list[str], *, attempts: int = 1) -> None:
    """Run a command; after the last failed attempt raise EnvError with what it was and how it ended."""
    environment = (
        {"UV_HTTP_TIMEOUT": HTTP_TIMEOUT_S, "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | index_settings() | os.environ
    )
    # A virtual environment that happens to be active is not the one that is built here.
    environment.pop("VIRTUAL_ENV", None)
    environment.pop("PYTHONPATH", None)
    for attempt in range(1, attempts + 1):
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code == 0:
            return
        if attempt < attempts:
            say(f"env:   attempt {attempt} of {attempts} failed (exit {code}); again in {PAUSE_S} s")
            time.sleep(PAUSE_S)
    shown = " ".join(command[:6])
    raise EnvError(f"`{shown} …` failed (exit {code}), see above; if that is the network, run the same command again")


@functools.cache
def index_settings() -> dict[str, str]:
    """What pip is told about its index, in uv's words: uv does not read pip's configuration, and a mirror is
    often set up for pip alone. The environment, where it says something to uv itself, wins over this."""
    known = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        name = known.get(key.split(".")[-1])
        if name:
            found[name] = value.strip("'\"")
    return found


def is_usable(python: Path) -> bool:
    if not python.exists():
        return False
    return subprocess.run([str(python), "-c", "pass"], capture_output=True, check=False).returncode == 0


def count(files: tuple[str, ...]) -> int:
    return sum(line[:1].isalnum() and "==" in line for name in files for line in (ROOT / name).read_text().splitlines())


def new_venv(directory: Path) -> None:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise EnvError(
            f"{sys.executable} has no venv module; install it "
            f"(Debian and Ubuntu: apt-get install python{version}-venv) "
            "or name another Python: make PYTHON=/path/to/python3"
        ) from None
    run([sys.executable, "-m", "venv", "--clear", str(directory)])


def sync(python: Path, locks: tuple[str, ...]) -> None:
    with heartbeat(f"installing {count(locks)} locked packages"):
        files = [str(ROOT / name) for name in locks]
        uv = str(ROOT / ".venv/bin/uv")
        # Compiled once here: where PYTHONDONTWRITEBYTECODE is set, as on many build machines, every start of vLLM
        # would compile it all again and take twice as long (47 s instead of 24 s).
        options = [*QUIET, "--compile-bytecode", "--require-hashes", "--python", str(python)]
        run([uv, "pip", "sync", *options, *files], attempts=ATTEMPTS)


def make_main(directory: Path, fresh: bool) -> None:
    python = directory / "bin/python"
    if fresh:
        say(f"env:   creating {directory.name} with {sys.executable} ({sys.version.split()[0]})")
        new_venv(directory)
    with heartbeat("installing uv with pip"):
        lock = str(ROOT / MAIN_LOCKS[0])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock]
        run(pip, attempts=ATTEMPTS)
    sync(python, MAIN_LOCKS)
    # `compat` puts the checkout itself on the path, so a room that is added later needs no new installation.
    editable = ["--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=compat"]
    uv = [str(directory / "bin/uv"), "pip", "install", "--quiet", "--python", str(python)]
    run([*uv, *editable, "--editable", str(ROOT)])


def make_vllm(directory: Path, fresh: bool) -> None:
    if fresh:
        say(f"env:   creating {directory.name}")
        shutil.rmtree(directory, ignore_errors=True)
        run([str(ROOT / ".venv/bin/uv"), "venv", "--quiet", "--python", sys.executable, str(directory)])
    # The lock was resolved with overrides (PyPI's torch; no torchvision, torchaudio, torchcodec), and `sync`
    # installs exactly what it lists without looking at dependencies again.
    sync(directory / "bin/python", VLLM_LOCKS)


ITSELF = "tools/make_env.py"
MAKERS = {
    "main": (".venv", (*MAIN_LOCKS, "pyproject.toml", ITSELF), make_main),
    "vllm": (".venv-vllm", (*VLLM_LOCKS, ITSELF), make_vllm),
}


def ensure(kind: str) -> None:
    name, inputs, make = MAKERS[kind]
    directory = ROOT / name
    stamp = directory / STAMP
    wanted = digest(inputs)

    def current() -> bool:
        return stamp.exists() and stamp.read_text().strip() == wanted and is_usable(directory / "bin/python")

    if current():
        return
    with alone():
        if current():
            return
        begun = time.monotonic()
        fresh = not (stamp.exists() and is_usable(directory / "bin/python"))
        how = "made from nothing" if fresh else "brought up to its lock"
        say(f"env: {name} is {how} ({', '.join(inputs)})")
        stamp.unlink(missing_ok=True)
        make(directory, fresh)
        stamp.write_text(wanted + "\n")
        say(f"env: {name} ready in {time.monotonic() - begun:.0f} s")


def main() -> int:
    if tuple(sys.version_info) < (3, 11):
        say(
            f"env: Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}; "
            "make PYTHON=/path/to/python3"
        )
        return 2
    if len(sys.argv) < 2 or any(kind not in MAKERS for kind in sys.argv[1:]):
        say(f"usage: make_env.py {'|'.join(MAKERS)} …")
        return 2
    try:
        for kind in sys.argv[1:]:
            ensure(kind)
    except EnvError as error:
        say(f"env: {error}")
        return 1
    except KeyboardInterrupt:
        say("env: interrupted; the next `make` starts this environment from nothing (downloads are kept)")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
