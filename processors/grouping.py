"""Micro-batches of whole groups: for recipes that compare the candidates of one prompt.

A group is whole when no candidate of it is still pending in the run, and as many are recorded as the recipe says. A
candidate that was dropped for a reason of its own does not hold the others up. A candidate that comes when its group is
already in a micro-batch is a group of its own. A turn that is no candidate is a group of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from schemas.recipes import Recipe

_WHOLE = """
WITH ready AS (
    SELECT s.sample_id, s.content_digest, s.replay_order, s.ready_at, t.group_id,
           coalesce(t.group_id, s.sample_id) AS key, w.value AS reward, c.turn_id IS NOT NULL AS taught
    FROM samples s
    JOIN turns t ON t.turn_id = s.turn_id
    LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
    LEFT JOIN teacher_scores c ON c.run = s.run AND c.turn_id = s.turn_id
    WHERE s.run = %(run)s AND s.state = 'ready'
), groups AS (
    SELECT r.key, count(*) AS members, min(r.replay_order) AS replay_order, min(r.ready_at) AS ready_at,
           count(r.reward) > 1 AND min(r.reward) < max(r.reward) AS informative
    FROM ready r
    GROUP BY r.key, r.group_id
    HAVING (%(before)s::bigint IS NULL OR max(r.replay_order) < %(before)s)
       AND (r.group_id IS NULL OR NOT EXISTS (
            SELECT 1 FROM turns u JOIN samples p ON p.run = %(run)s AND p.turn_id = u.turn_id
            WHERE u.group_id = r.group_id AND p.state = 'pending'))
       AND (r.group_id IS NULL OR %(group_size)s::int IS NULL OR %(group_size)s <= (
            SELECT count(*) FROM turns u JOIN samples p ON p.run = %(run)s AND p.turn_id = u.turn_id
            WHERE u.group_id = r.group_id))
)
"""

_UNINFORMATIVE = f"""
{_WHOLE}
UPDATE samples s SET state = 'dropped', drop_reason = 'uninformative', updated_at = now(),
       drop_detail = format('reward %%s: no candidate of group %%s was rewarded otherwise', r.reward, r.group_id)
FROM ready r JOIN groups g ON g.key = r.key
WHERE s.sample_id = r.sample_id AND s.state = 'ready' AND NOT g.informative AND NOT (r.taught AND %(taught)s)
"""

_OLDEST = f"""
{_WHOLE}
SELECT r.sample_id, r.content_digest
FROM (SELECT key, replay_order, ready_at,
             sum(members) OVER (ORDER BY replay_order, ready_at, key) - members AS before
      FROM groups) g
JOIN ready r ON r.key = g.key
WHERE g.before < %(size)s
ORDER BY g.replay_order, g.ready_at, g.key, r.replay_order, r.ready_at, r.sample_id
"""

_LOCK = "SELECT count(*) FROM (SELECT 1 FROM samples WHERE sample_id = ANY(%(ids)s) AND state = 'ready' FOR UPDATE) s"


def drop_uninformative(connection: Connection, run: str, recipe: Recipe, before: int | None) -> None:
    """Drop the members of whole groups that have nothing to compare (fewer than two rewards, or all equal), unless a
    teacher has something to say to them."""
    connection.exec_driver_sql(_UNINFORMATIVE, {**_whole(run, recipe, before), "taught": recipe.loss.w_opd != 0})


def oldest_groups(connection: Connection, run: str, recipe: Recipe, before: int | None) -> Sequence[Any]:
    """`sample_id` and `content_digest` of the members of the oldest whole groups, at least the recipe's size together
    if there are so many; locked. A group's age is its first ready member's. Empty where one changed meanwhile."""
    chosen = connection.exec_driver_sql(_OLDEST, {**_whole(run, recipe, before), "size": recipe.batch.size}).all()
    locked = connection.exec_driver_sql(_LOCK, {"ids": [row.sample_id for row in chosen]}).scalar_one()
    return chosen if locked == len(chosen) else []


def _whole(run: str, recipe: Recipe, before: int | None) -> dict[str, Any]:
    return {"run": run, "before": before, "group_size": recipe.batch.group_size}
