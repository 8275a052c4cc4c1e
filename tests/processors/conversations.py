"""Small conversations as events and deliveries, and tables as plain rows to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, text

from processors.dead_letters import Delivery
from processors.recording import Outcome, record
from processors.runs import ensure_run
from schemas.database import make_engine
from schemas.envelope import Event, WireRecord, encode, new_event
from schemas.events import (
    EventData,
    NextStateObserved,
    PolicyRef,
    Response,
    Tokens,
    TurnRecorded,
    VersionSpan,
)
from schemas.recipes import Recipe, recipe_named

SOURCE = "test"
TOPIC = "agent-events"
VOLATILE = {"created_at", "updated_at", "closed_at", "ready_at", "finished_at", "record_offset", "partition", "topic"}
"""Columns that say when and where, not what."""
RECORDED = ("events", "sessions", "turns", "next_states", "turn_completions", "feedback", "samples", "evaluations")


def turn(turn_id: str, session: str = "s", parent: str | None = None, **more: Any) -> TurnRecorded:
    """A turn that can be trained: three response tokens of version 1."""
    fields: dict[str, Any] = {
        "ordinal": 0,
        "messages": [{"role": "user", "content": f"before {turn_id}"}],
        "response": Response(content=f"answer {turn_id}"),
        "finish_reason": "stop",
        "policy": PolicyRef(name="policy", spans=[VersionSpan(version=1, start=0, end=3)]),
        "tokens": Tokens(
            source="engine", prompt_ids=[1, 2], response_ids=[3, 4, 5], response_logprobs=[-0.5, -0.25, -0.125]
        ),
    }
    return TurnRecorded(session_id=session, turn_id=turn_id, parent_turn_id=parent, **{**fields, **more})


def next_state(state_id: str, turn_id: str, session: str = "s", **more: Any) -> NextStateObserved:
    """A user's reply."""
    fields: dict[str, Any] = {"kind": "user_reply", "role": "user", "content": f"reply {state_id}"}
    return NextStateObserved(next_state_id=state_id, session_id=session, turn_id=turn_id, **{**fields, **more})


def id_of(data: EventData) -> str:
    """The id of the thing that an event says."""
    for name in ("next_state_id", "feedback_id", "turn_id"):
        if hasattr(data, name):
            return str(getattr(data, name))
    return f"closed-{data.session_id}"


def event(data: EventData, event_id: str | None = None) -> Event:
    return new_event(data, id=event_id or f"event-{id_of(data)}", source=SOURCE)


def wire(data: EventData, event_id: str | None = None) -> WireRecord:
    return encode(event(data, event_id))


def delivery(wired: WireRecord, offset: int, partition: int = 0) -> Delivery:
    return Delivery(TOPIC, partition, offset, wired.key, list(wired.headers), wired.value)


def deliver(*data: EventData | WireRecord, start: int = 0) -> list[Delivery]:
    """Deliveries of one partition from offset `start`."""
    return [
        delivery(one if isinstance(one, WireRecord) else wire(one), start + offset) for offset, one in enumerate(data)
    ]


class Recording:
    """A database with one live run, and a log that is appended to."""

    def __init__(self, url: str, recipe: Recipe | None = None) -> None:
        self.engine: Engine = make_engine(url, pool_size=4, application_name="test")
        self._offset = 0
        with self.engine.begin() as connection:
            ensure_run(connection, run="live", kind="live", policy="policy", recipe=recipe or recipe_named("combine"))

    def record(self, *data: EventData | WireRecord) -> Outcome:
        """Deliver in one batch."""
        deliveries = deliver(*data, start=self._offset)
        self._offset += len(deliveries)
        with self.engine.begin() as connection:
            return record(connection, deliveries)

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    def one(self, query: str, **values: Any) -> tuple[Any, ...]:
        (row,) = self.rows(query, **values)
        return row

    def sample(self, turn_id: str) -> tuple[Any, ...]:
        """state, drop_reason, linked."""
        return self.one("SELECT state, drop_reason, linked FROM samples WHERE turn_id = :t", t=turn_id)

    def signals(self, turn_id: str) -> dict[str, str]:
        return dict(self.rows("SELECT signal, state FROM evaluations WHERE turn_id = :t", t=turn_id))

    def completion(self, turn_id: str) -> tuple[Any, ...] | None:
        found = self.rows("SELECT completed_by, cause_id FROM turn_completions WHERE turn_id = :t", t=turn_id)
        return found[0] if found else None

    def letters(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT error_class, error_message FROM dead_letters ORDER BY record_offset")


def dump(connection: Connection, names: Sequence[str] = RECORDED) -> dict[str, list[str]]:
    """Every row of the tables without the columns that say when and where, sorted."""
    tables = {}
    for name in names:
        rows = connection.execute(text(f"SELECT * FROM {name}")).mappings()
        tables[name] = sorted(
            repr({key: value for key, value in sorted(row.items()) if key not in VOLATILE}) for row in rows
        )
    return tables
