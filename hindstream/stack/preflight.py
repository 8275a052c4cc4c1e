"""What is looked at before anything starts, so that a missing thing is one line instead of a log to read."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from hindstream.errors import UserError

# Data of an hour's use (Postgres starts at 40 MB, the broker at nothing) with room to spare; a disk that
# fills up under a broker stops it, so we would rather not start.
MIN_FREE_DATA_MB = 1024
# The rebuilt model is 270 MB, written beside itself before it is renamed; the jars are 150 MB.
MIN_FREE_CACHE_MB = 768


def check(home: Path, cache: Path) -> None:
    """Raise UserError for the first thing that would stop the stack here."""
    if not sys.platform.startswith("linux"):
        raise UserError(
            f"the local stack runs on Linux, this is {sys.platform}: start docker-compose.yml's services and "
            "set HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS, HINDSTREAM_DATABASE__URL, HINDSTREAM_POLICY__URL"
        )
    for directory, needed_mb, variable in (
        (home, MIN_FREE_DATA_MB, "HINDSTREAM_HOME"),
        (cache, MIN_FREE_CACHE_MB, "HINDSTREAM_CACHE"),
    ):
        elsewhere = f"set {variable} to another place"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{directory} cannot be made ({error.strerror}); {elsewhere}") from None
        if not os.access(directory, os.W_OK | os.X_OK):
            raise UserError(f"{directory} cannot be written by this account; {elsewhere}")
        free_mb = shutil.disk_usage(directory).free // (1024 * 1024)
        if free_mb < needed_mb:
            raise UserError(f"{directory}: {free_mb} MB free, {needed_mb} needed; make room or {elsewhere}")
