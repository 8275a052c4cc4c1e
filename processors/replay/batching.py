"""Micro-batches of a replay: in the order of its log, whatever finished first.

A live batcher takes the oldest ready samples, and which are ready when depends on how fast judges answer. A replay must
make the same micro-batches every time, so it looks only at turns before the first one that is still undecided.
"""

from __future__ import annotations

from sqlalchemy import Connection

UNDECIDED = """
SELECT min(replay_order) FROM samples WHERE run = %(run)s AND state = 'pending'
"""


def decided_before(connection: Connection, run: str) -> int | None:
    """The place in the replay's order up to which every sample is decided; None where all are.

    Samples are opened in the order of the log, so one that is opened later stands behind all that there are.
    """
    found: int | None = connection.exec_driver_sql(UNDECIDED, {"run": run}).scalar_one()
    return found
