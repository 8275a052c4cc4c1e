"""Answers of model servers, kept by the digest of the question, so that no question is paid for twice.

The digest covers everything that shapes an answer: purpose, model, the served weight version where the server says
one, the prompt's digest, the rendered input, sampling and the vote's number. An answer is kept as soon as it is
there, in a transaction of its own: a worker that dies before it has finished the evaluation loses nothing.

A replay asks what was answered when the log was made, so it looks for the question, whichever version answered; the
first recorded answer counts, for it is the one that cannot change any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from processors.inserting import insert_new
from schemas import tables
from schemas.digests import canonical_json, clean_json, digest_of
from schemas.text import sanitise, sanitise_text


def answer_digest(
    *,
    purpose: str,
    model: str,
    version: str | None,
    prompt_digest: str | None,
    rendered: Any,
    sampling: dict[str, Any],
    vote: int | None,
) -> str:
    """Key of an answer in `model_answers`; with `version` None the key of the question."""
    clean, _ = sanitise([purpose, model, version, prompt_digest, rendered, sampling, vote])
    return digest_of(clean)


def question_digests(
    *, purpose: str, model: str, prompt_digest: str, rendered: Any, samplings: Sequence[dict[str, Any]]
) -> list[str]:
    """`answer_digest` without a version for each of the votes with `samplings`, whose seed is the vote's number. What
    is rendered is written as JSON once for all of them."""
    written, name = msgspec.Raw(_clean_json(rendered)), sanitise_text(model)
    return [
        digest_of([purpose, name, None, prompt_digest, written, sampling, sampling["seed"]]) for sampling in samplings
    ]


def _clean_json(rendered: Any) -> bytes:
    """Canonical JSON, sanitised; what was read from the database has nothing to replace."""
    plain = clean_json(rendered)
    return canonical_json(sanitise(rendered)[0]) if plain is None else plain


def known_answers(connection: Connection, digests: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The kept answers of `digests`."""
    found = connection.exec_driver_sql(
        "SELECT answer_digest, answer FROM model_answers WHERE answer_digest = ANY(%(digests)s)",
        {"digests": list(digests)},
    )
    return {row.answer_digest: row.answer for row in found}


def recorded_answer(connection: Connection, question: str) -> tuple[dict[str, Any], str] | None:
    """The first answer that was recorded to a question, with its digest."""
    found = connection.exec_driver_sql(
        "SELECT answer, answer_digest FROM model_answers WHERE question_digest = %(question)s "
        "ORDER BY created_at, answer_digest LIMIT 1",
        {"question": question},
    ).one_or_none()
    return None if found is None else (found.answer, found.answer_digest)


def recorded_answers(connection: Connection, questions: Iterable[str]) -> dict[str, tuple[dict[str, Any], str]]:
    """What `recorded_answer` finds, for those of `questions` that have an answer."""
    found = connection.exec_driver_sql(
        "SELECT DISTINCT ON (question_digest) question_digest, answer, answer_digest FROM model_answers "
        "WHERE question_digest = ANY(%(questions)s) ORDER BY question_digest, created_at, answer_digest",
        {"questions": list(questions)},
    )
    return {question: (answer, digest) for question, answer, digest in found}


def keep_answer(
    connection: Connection,
    digest: str,
    *,
    question: str,
    purpose: str,
    model: str,
    answer: dict[str, Any],
    session_id: str | None = None,
) -> dict[str, Any]:
    """Keep `answer` unless there is one already, and return the one that is kept: the first stays. `session_id`: what
    it was asked about."""
    clean, _ = sanitise(answer)
    row = {
        "answer_digest": digest,
        "question_digest": question,
        "purpose": purpose,
        "model": model,
        "answer": clean,
        "session_id": session_id,
    }
    insert_new(connection, tables.model_answers, [row])
    return known_answers(connection, [digest])[digest]
