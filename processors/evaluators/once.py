"""One question is asked once, however many workers have it at the same time.

Who is first writes down that it asks, with a lease that it prolongs; the others wait for its answer. If it is killed
its lease ends, and the next one asks. The row goes in the transaction that keeps the answer, so nobody sees neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Literal

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from processors.erasing.session import erased_sessions
from processors.evaluators.answers import keep_answer, known_answers
from processors.sessions import lock_sessions
from processors.transactions import Transactions

_LEASE_S = 15.0
"""What the question of a killed worker waits. Longer than a database is away for a restart."""
_BEATS_A_LEASE = 3
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.05, 1.0
"""Between two looks at another's answer: most take a second or more."""

Answer = dict[str, Any]

about_session: ContextVar[str | None] = ContextVar("about_session", default=None)
"""The session that the task's questions are about: its answers go with it when it is erased."""

_BEGIN = """
INSERT INTO open_questions (answer_digest, asker, lease_until)
VALUES (%(digest)s, %(asker)s, clock_timestamp() + make_interval(secs => %(lease_s)s))
ON CONFLICT (answer_digest) DO UPDATE SET asker = excluded.asker, lease_until = excluded.lease_until
WHERE open_questions.lease_until < clock_timestamp()
RETURNING asker
"""
_EXTEND = """
UPDATE open_questions SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE answer_digest = %(digest)s AND asker = %(asker)s
"""


async def asked_once(
    transactions: Transactions,
    digest_now: Callable[[], Awaitable[str]],
    ask: Callable[[str], Awaitable[tuple[Answer, str]]],
    *,
    question: str,
    purpose: str,
    model: str,
    lease_s: float = _LEASE_S,
) -> tuple[Answer, str]:
    """The kept answer to a question, with its key; `ask` is called where there is none and nobody else is asking.

    Args:
        transactions: where answers are kept.
        digest_now: the key of the answer by the weights that are served now.
        ask: given that key, gets the answer, and the key of the weights that gave it.
        question: the key without weights.
        purpose: reward, hint or teacher.
        model: who is asked.
        lease_s: how long others wait for a worker that was last heard of.

    Raises:
        Exception: whatever `ask` raises; the question is then anybody's.
    """
    asker, look_s = secrets.token_hex(8), _FIRST_LOOK_S
    while True:
        digest = await digest_now()
        found = await _begin(transactions, digest, asker, lease_s)
        if found == "ask":
            break
        if found is not None:
            return found, digest
        await asyncio.sleep(look_s)
        look_s = min(look_s * 1.5, _LONGEST_LOOK_S)
    try:
        async with _prolonged(transactions, digest, asker, lease_s):
            answer, key = await ask(digest)
        kept = await transactions.run(
            _keep,
            digest,
            asker,
            key,
            question=question,
            purpose=purpose,
            model=model,
            answer=answer,
            session_id=about_session.get(),
        )
    except BaseException:
        with contextlib.suppress(SQLAlchemyError):  # else the lease ends it
            await transactions.run(_end, digest, asker)
        raise
    return kept, key


async def _begin(transactions: Transactions, digest: str, asker: str, lease_s: float) -> Answer | Literal["ask"] | None:
    """`known_or_begin`; a caller who is cancelled meanwhile leaves no question behind. Its transaction goes on in its
    thread, so it is waited for before it is undone."""
    begin = asyncio.ensure_future(transactions.run(known_or_begin, digest, asker, lease_s))
    try:
        return await asyncio.shield(begin)
    except asyncio.CancelledError:
        with contextlib.suppress(SQLAlchemyError):  # else the lease ends it
            if await begin == "ask":
                await transactions.run(_end, digest, asker)
        raise


def known_or_begin(connection: Connection, digest: str, asker: str, lease_s: float) -> Answer | Literal["ask"] | None:
    """The kept answer; else "ask" where `asker` now has the question; None where somebody else has it."""
    if (known := known_answers(connection, [digest]).get(digest)) is not None:
        return known
    begun = connection.exec_driver_sql(_BEGIN, {"digest": digest, "asker": asker, "lease_s": lease_s}).one_or_none()
    if begun is None:
        return None
    # It may have been answered between the two statements: then its asker's row was gone, and ours took its place.
    if (known := known_answers(connection, [digest]).get(digest)) is not None:
        _end(connection, digest, asker)
        return known
    return "ask"


@contextlib.asynccontextmanager
async def _prolonged(transactions: Transactions, digest: str, asker: str, lease_s: float) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            await asyncio.sleep(lease_s / _BEATS_A_LEASE)
            with contextlib.suppress(SQLAlchemyError):  # the next beat may get through; if none does, the lease ends
                await transactions.run(_extend, digest, asker, lease_s)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()


def _extend(connection: Connection, digest: str, asker: str, lease_s: float) -> None:
    connection.exec_driver_sql(_EXTEND, {"digest": digest, "asker": asker, "lease_s": lease_s})


def _keep(
    connection: Connection,
    digest: str,
    asker: str,
    key: str,
    *,
    question: str,
    purpose: str,
    model: str,
    answer: Answer,
    session_id: str | None,
) -> Answer:
    _end(connection, digest, asker)
    if session_id is not None:
        lock_sessions(connection, [session_id])  # or an erasure could be committed without having seen the row
        if erased_sessions(connection, [session_id]):
            return answer
    return keep_answer(
        connection, key, question=question, purpose=purpose, model=model, answer=answer, session_id=session_id
    )


def _end(connection: Connection, digest: str, asker: str) -> None:
    connection.exec_driver_sql(
        "DELETE FROM open_questions WHERE answer_digest = %(digest)s AND asker = %(asker)s",
        {"digest": digest, "asker": asker},
    )
