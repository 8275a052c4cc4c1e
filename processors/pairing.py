"""Micro-batches of pairs: for recipes that compare two answers to the same messages.

A pair is found among siblings: candidates of one group, or branches of one session at the same place, that answered the
same messages. The best goes with the worst, the second best with the second worst, while they differ
(`schemas.pairs.best_with_worst`, which the learner asks again). An answer that a person corrected is a pair by itself.

Siblings are looked at when no more of them can come: in a live run when their session is closed and none of it is still
being judged, in a replay when its whole log is read and decided. An answer that is in no pair then is `uninformative`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

DECIDED = """
SELECT coalesce((SELECT read FROM replays WHERE run = %(run)s), true)
   AND NOT EXISTS (SELECT 1 FROM samples WHERE run = %(run)s AND state = 'pending')
"""
"""Whether all of a replay's turns are read and decided."""

_PAIRED = """
WITH ready AS (
    SELECT s.sample_id, s.turn_id, s.content_digest, s.replay_order, s.ready_at, w.value AS reward,
           s.feedback_id IS NOT NULL AS corrected,
           CASE WHEN s.feedback_id IS NOT NULL THEN s.sample_id
                ELSE md5(jsonb_build_array(t.messages, t.tools, t.group_id,
                         CASE WHEN t.group_id IS NULL THEN t.session_id END,
                         CASE WHEN t.group_id IS NULL THEN t.parent_turn_id END)::text) END AS key
    FROM samples s
    JOIN turns t ON t.turn_id = s.turn_id
    LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
    WHERE s.run = %(run)s AND s.state = 'ready'
      AND (s.feedback_id IS NOT NULL OR NOT %(live)s OR (
          EXISTS (SELECT 1 FROM sessions e WHERE e.session_id = t.session_id AND e.close_reason IS NOT NULL)
          AND NOT EXISTS (SELECT 1 FROM samples p WHERE p.run = s.run AND p.session_id = t.session_id
                          AND p.state = 'pending')
          AND (t.group_id IS NULL OR NOT EXISTS (
              SELECT 1 FROM turns u JOIN samples p ON p.run = s.run AND p.turn_id = u.turn_id
              WHERE u.group_id = t.group_id AND p.state = 'pending'))))
), ranked AS (
    SELECT *, row_number() OVER ranks AS place, count(*) OVER (PARTITION BY key) AS members,
           array_agg(reward) OVER (ranks ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS rewards
    FROM ready
    WINDOW ranks AS (PARTITION BY key ORDER BY reward DESC, turn_id COLLATE "C")
), paired AS (
    SELECT *, corrected OR rewards[place] <> rewards[members + 1 - place] AS in_pair FROM ranked
)
"""
"""In a group of n the answer at place i is paired with the one at place n + 1 - i. Without those that are not, each of
the others finds the same one again."""

_DROP = f"""
{_PAIRED}
UPDATE samples s SET state = 'dropped', drop_reason = 'uninformative', updated_at = now(),
       drop_detail = format('reward %%s: no answer to the same messages was rewarded otherwise', p.reward)
FROM paired p
WHERE s.sample_id = p.sample_id AND s.state = 'ready' AND p.in_pair IS NOT TRUE
"""

_OLDEST = f"""
{_PAIRED}, keys AS (
    SELECT key, count(*) AS members, min(replay_order) AS replay_order, min(ready_at) AS ready_at
    FROM paired WHERE in_pair GROUP BY key
), places AS (
    SELECT *, sum(members) OVER (ORDER BY replay_order, ready_at, key) - members AS before FROM keys
)
SELECT p.sample_id, p.content_digest
FROM places k JOIN paired p ON p.key = k.key AND p.in_pair
WHERE k.before < %(size)s
ORDER BY k.replay_order, k.ready_at, k.key, p.place
"""

_LOCK = "SELECT count(*) FROM (SELECT 1 FROM samples WHERE sample_id = ANY(%(ids)s) AND state = 'ready' FOR UPDATE) s"


def drop_unpaired(connection: Connection, run: str, *, live: bool) -> None:
    """Drop the answers that are in no pair and will be in none."""
    connection.exec_driver_sql(_DROP, {"run": run, "live": live})


def oldest_pairs(connection: Connection, run: str, size: int, *, live: bool) -> Sequence[Any]:
    """`sample_id` and `content_digest` of the oldest pairs, with all pairs of the same messages together, at least
    `size` samples if there are so many; locked. Empty where one changed meanwhile."""
    chosen = connection.exec_driver_sql(_OLDEST, {"run": run, "live": live, "size": size}).all()
    locked = connection.exec_driver_sql(_LOCK, {"ids": [row.sample_id for row in chosen]}).scalar_one()
    return chosen if locked == len(chosen) else []
