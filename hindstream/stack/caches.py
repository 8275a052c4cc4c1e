"""Directories that are made once and shared by every checkout: complete once they have their name."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hindstream.errors import UserError


@contextlib.contextmanager
def made_whole(final: Path) -> Iterator[Path]:
    """An empty directory to fill; it becomes `final` when the block ends well, and is removed when it does not.

    Two that make the same at once do not meet: the first to finish names its own, the other drops its.

    Raises:
        UserError: the directory cannot be made or named.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.{os.getpid()}.", suffix=".tmp", dir=final.parent))
    except OSError as error:
        raise UserError(f"{final} cannot be made ({error.strerror})") from None
    try:
        yield temporary
        temporary.chmod(0o755)
        with contextlib.suppress(OSError):  # somebody was first
            temporary.rename(final)
        if not final.is_dir():
            raise UserError(f"{temporary} cannot be renamed to {final}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(final: Path) -> None:
    """What a process that was killed in the middle left."""
    for old in final.parent.glob(f".{final.name}.*.*.tmp"):
        if not Path(f"/proc/{old.name.split('.')[-3]}").exists():
            shutil.rmtree(old, ignore_errors=True)
