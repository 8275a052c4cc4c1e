"""Ports of the local stack: free ones are chosen once and kept, so addresses survive a restart."""

from __future__ import annotations

import random
import socket

from hindstream.errors import UserError

LOOPBACK = "127.0.0.1"
# Below the kernel's range for outgoing connections (32768 and up on Linux): a port chosen from that range may
# belong to somebody's outgoing connection the next time we start.
RANGE = range(20000, 32000)
ATTEMPTS = 200


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """True if nobody listens there. Connections that are still dying (TIME_WAIT) do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def choose(*, avoid: frozenset[int] = frozenset()) -> int:
    """A free port, at random so that two stacks which start at once do not pick the same.

    Raises:
        UserError: none was found.
    """
    for _ in range(ATTEMPTS):
        port = random.choice(RANGE)
        if port not in avoid and is_free(port):
            return port
    raise UserError(f"no free port found between {RANGE.start} and {RANGE.stop} on {LOOPBACK}")


def settle(*, fixed: int, remembered: int | None, what: str, variable: str, avoid: frozenset[int]) -> tuple[int, str]:
    """The port for a service that is about to start, and a sentence about it (empty if there is nothing to
    say).

    `fixed` is the port from the settings (0: none), `remembered` the one it had last time.

    Raises:
        UserError: the fixed port is taken.
    """
    if fixed:
        if not is_free(fixed):
            raise UserError(f"{what}: port {fixed} is taken; free it, or set {variable} to another (0 chooses one)")
        return fixed, ""
    if remembered and is_free(remembered):
        return remembered, ""
    port = choose(avoid=avoid)
    return port, f"port {remembered} is taken, using {port} from now on" if remembered else ""
