"""What a run learned about turns as examples for other trainers: to imitate, to rate, to prefer one to another.

| kind | an example is | fields |
|---|---|---|
| sft | a turn with a positive reward | prompt, completion |
| kto | a turn with a reward that is not 0 | prompt, completion, label |
| dpo | two answers to the same messages | prompt, chosen, rejected |

Side turns, and answers that were cut off or failed, are left out: nobody should learn to answer so, and a low reward of
one says nothing about its words. Two answers are to the same messages as candidates of a group, or as branches of a
session (an answer that was made again); or a person wrote down what the answer should have been.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, and_, func, select

from schemas.chat import answer_of, prompt_of
from schemas.digests import prompt_digest
from schemas.pairs import best_with_worst
from schemas.tables import feedback, rewards, runs, samples, turns

Kind = Literal["sft", "dpo", "kto"]
Example = dict[str, Any]

_FETCH = 500
_COLUMNS = (
    turns.c.turn_id,
    turns.c.session_id,
    turns.c.group_id,
    turns.c.parent_turn_id,
    turns.c.messages,
    turns.c.tools,
    turns.c.response,
    turns.c.policy,
    turns.c.newest_version,
)
_WHOLE = and_(turns.c.kind == "main", turns.c.finish_reason.in_(("stop", "tool_calls")), turns.c.erased_at.is_(None))


@dataclass(frozen=True)
class RunOf:
    """The run whose rewards count, and its recipe."""

    name: str
    recipe_digest: str


def find_run(connection: Connection, name: str) -> RunOf | None:
    """The run of that name; None where there is none."""
    digest = connection.execute(select(runs.c.recipe_digest).where(runs.c.run == name)).scalar_one_or_none()
    return None if digest is None else RunOf(name, digest)


def examples(connection: Connection, run: RunOf, kind: Kind) -> Iterator[Example]:
    """The examples of a run, in an order that depends on the rows alone."""
    if kind == "dpo":
        yield from _candidates(connection, run)
        yield from _branches(connection, run)
        yield from _corrections(connection, run)
        return
    wanted = rewards.c.value > 0 if kind == "sft" else rewards.c.value != 0
    statement = _rewarded(run, wanted).order_by(turns.c.created_at, turns.c.turn_id)
    for row in _stream(connection, statement):
        example = _prompt(row) | {"completion": [answer_of(row["response"])]}
        if kind == "kto":
            example["label"] = row["value"] > 0
        yield example | {
            "turn_id": row["turn_id"],
            "session_id": row["session_id"],
            "reward": row["value"],
            "annotator_kind": row["annotator_kind"],
            **_made_by(run, row),
        }


def _candidates(connection: Connection, run: RunOf) -> Iterator[Example]:
    statement = _rewarded(run, turns.c.group_id.is_not(None)).order_by(turns.c.group_id, turns.c.turn_id)
    for _, rows in groupby(_stream(connection, statement), key=lambda row: row["group_id"]):
        yield from _pairs(run, rows, "group")


def _branches(connection: Connection, run: RunOf) -> Iterator[Example]:
    parent = func.coalesce(turns.c.parent_turn_id, "")
    statement = _rewarded(run).order_by(turns.c.session_id, parent, turns.c.turn_id)
    siblings = groupby(_stream(connection, statement), key=lambda row: (row["session_id"], row["parent_turn_id"]))
    for _, rows in siblings:
        # One of each group: its candidates are pairs already, and they all come after the same messages.
        apart = {row["group_id"] or row["turn_id"]: row for row in rows}
        yield from _pairs(run, apart.values(), "branch")


def _pairs(run: RunOf, rows: Iterable[dict[str, Any]], why: str) -> Iterator[Example]:
    by_prompt: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_prompt.setdefault(prompt_digest(row["messages"], row["tools"]), []).append(row)
    for same in by_prompt.values():
        for better, worse in best_with_worst(same, itemgetter("value"), itemgetter("turn_id")):
            yield _prompt(better) | {
                "chosen": [answer_of(better["response"])],
                "rejected": [answer_of(worse["response"])],
                **_of_pair(run, why, worse),
                "chosen_turn_id": better["turn_id"],
                "chosen_reward": better["value"],
            }


def _corrections(connection: Connection, run: RunOf) -> Iterator[Example]:
    statement = (
        select(*_COLUMNS, rewards.c.value, feedback.c.feedback_id, feedback.c.correction, feedback.c.author)
        .join(turns, turns.c.turn_id == feedback.c.turn_id)
        .join(samples, and_(samples.c.turn_id == turns.c.turn_id, samples.c.run == run.name))
        .outerjoin(rewards, and_(rewards.c.turn_id == turns.c.turn_id, rewards.c.run == run.name))
        .where(feedback.c.correction.is_not(None), turns.c.kind == "main")
        .order_by(feedback.c.created_at, feedback.c.feedback_id)
    )
    for row in _stream(connection, statement):
        chosen, rejected = {"role": "assistant", "content": row["correction"]}, answer_of(row["response"])
        if chosen != rejected and row["correction"].strip():
            yield _prompt(row) | {
                "chosen": [chosen],
                "rejected": [rejected],
                **_of_pair(run, "correction", row),
                "chosen_turn_id": None,
                "chosen_reward": None,
                "feedback_id": row["feedback_id"],
                "author": row["author"],
            }


def _rewarded(run: RunOf, *more: ColumnElement[bool]) -> Select[Any]:
    return (
        select(*_COLUMNS, rewards.c.value, rewards.c.annotator_kind)
        .join(turns, turns.c.turn_id == rewards.c.turn_id)
        .where(rewards.c.run == run.name, rewards.c.value.is_not(None), _WHOLE, *more)
    )


def _stream(connection: Connection, statement: Select[Any]) -> Iterator[dict[str, Any]]:
    result = connection.execution_options(stream_results=True, yield_per=_FETCH).execute(statement)
    yield from (dict(row) for row in result.mappings())


def _prompt(row: dict[str, Any]) -> Example:
    # Tools as text, which trainers take too: as objects of different shapes they fit into no table.
    tools = msgspec.json.encode(row["tools"]).decode("utf-8") if row["tools"] else None
    return {"prompt": prompt_of(row["messages"]), "tools": tools}


def _of_pair(run: RunOf, why: str, rejected: dict[str, Any]) -> Example:
    return {
        "pair": why,
        "session_id": rejected["session_id"],
        "rejected_turn_id": rejected["turn_id"],
        "rejected_reward": rejected["value"],
        "feedback_id": None,
        "author": None,
        **_made_by(run, rejected),
    }


def _made_by(run: RunOf, row: dict[str, Any]) -> Example:
    return {
        "policy": row["policy"],
        "policy_version": row["newest_version"],
        "run": run.name,
        "recipe_digest": run.recipe_digest,
    }
