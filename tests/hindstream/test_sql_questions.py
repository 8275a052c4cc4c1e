"""The questions of docs/questions.md are asked of a run with rewards, hints, teacher scores and a trained step."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import psycopg
import pytest
from sqlalchemy import Engine, text

from schemas.arrays import pack_floats, pack_ids
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.test_replay import conversations, events_of

pytestmark = pytest.mark.stack

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.S)
MAY_BE_EMPTY = {"dead_letters", "weight_loads"}
"""What a healthy run without a server has none of."""

LEARNED = """
INSERT INTO micro_batches (micro_batch_id, run, policy, seq, recipe_digest, digest, size, state)
VALUES ('b1', 'live', 'policy', 1, 'r', 'd', 4, 'consumed');
UPDATE samples SET state = 'trained', micro_batch_id = 'b1', position = 0, staleness = 0
WHERE run = 'live' AND turn_id IN ('s0-1', 's1-0', 's2-0');
INSERT INTO weight_versions (policy, version, parent_version, run, micro_batch_id, path, manifest, manifest_sha256)
VALUES ('policy', 1, 0, 'live', 'b1', '/', '{}', 'x');
INSERT INTO training_steps (run, step, micro_batch_id, policy, version, metrics, samples_trained, samples_dropped,
                            tokens, seconds)
VALUES ('live', 1, 'b1', 'policy', 1, '{"loss": 0.5, "kl_k3": 0.01}', 3, 1, 9, 1.0);
INSERT INTO rewards (run, turn_id, status, value, annotator_kind, votes_valid, votes_total)
SELECT 'live', turn_id, 'scored', 1, 'LLM', 2, 2 FROM turns;
INSERT INTO votes (run, turn_id, signal, vote, annotator_kind, annotator, status, score)
SELECT 'live', turn_id, 'reward', n, 'LLM', 'judge', 'valid', 1 - 2 * n FROM turns, generate_series(0, 1) n;
INSERT INTO hints (run, turn_id, status, text, annotator_kind, votes_valid, votes_total)
SELECT 'live', turn_id, 'accepted', 'Be brief.', 'CODE', 1, 1 FROM turns
"""


@pytest.fixture
def recording(migrated_database_url: str) -> Recording:
    made = Recording(
        migrated_database_url, recipe_named("combine", {"judge": {"votes": 0}, "hint": {"patterns": ["x"]}})
    )
    made.record(*(one.data for one in events_of(conversations(turns=10, sessions=5))))
    with made.engine.begin() as connection:
        for statement in LEARNED.split(";\n"):
            connection.execute(text(statement))
        connection.execute(
            text(
                "INSERT INTO teacher_scores (run, turn_id, teacher, hinted_prompt_ids, logprobs, top_k, topk_ids, "
                "topk_logprobs, mean_gain) VALUES ('live', 's0-0', 'm', :ids, :scores, 4, :ids, :scores, 0.1)"
            ),
            {"ids": pack_ids([1]), "scores": pack_floats([-0.25, -0.5, -math.inf])},
        )
        connection.execute(
            text("UPDATE samples SET state = 'dropped', drop_reason = 'stale' WHERE run = 'live' AND turn_id = 's4-1'")
        )
    return made


def test_there_are_fifteen_at_least() -> None:
    assert len(QUERIES) >= 15


@pytest.mark.parametrize("query", QUERIES, ids=[f"{number}" for number in range(len(QUERIES))])
def test_every_question_of_the_page_has_an_answer(recording: Recording, query: str) -> None:
    with recording.engine.connect() as connection:
        found = connection.exec_driver_sql(query).all()
    assert found or any(name in query for name in MAY_BE_EMPTY), query


def test_arrays_become_rows_bit_for_bit(recording: Recording) -> None:
    chance = np.random.default_rng(0)
    bits = chance.integers(0, 2**32, 500, dtype=np.uint64).astype(np.uint32)
    special = np.array([0.0, -0.0, 1e-45, -1e-40, 3.4e38, np.inf, -np.inf, np.nan, 1.0, -0.1], dtype=np.float32)
    values = np.concatenate([bits.view(np.float32), special])
    ids = [0, 1, -1, 2**31 - 1, -(2**31), 49_151]
    with recording.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT position, value FROM unpack_floats(%(packed)s) ORDER BY position", {"packed": pack_floats(values)}
        ).all()
        found = connection.exec_driver_sql(
            "SELECT token_id FROM unpack_ids(%(packed)s) ORDER BY position", {"packed": pack_ids(ids)}
        ).scalars()
        assert list(found) == ids
        assert connection.exec_driver_sql("SELECT count(*) FROM unpack_ids(''::bytea)").scalar_one() == 0
    assert [row.position for row in rows] == list(range(len(values)))
    np.testing.assert_array_equal(np.array([row.value for row in rows], dtype=np.float32), values)


def test_tokens_stand_beside_the_teacher_s(recording: Recording) -> None:
    rows = recording.rows(
        "SELECT position, token_id, logprob, teacher_logprob, gain FROM teacher_tokens "
        "WHERE turn_id = 's0-0' ORDER BY 1"
    )
    assert rows == [(0, 3, -0.5, -0.25, 0.25), (1, 4, -0.25, -0.5, -0.25), (2, 5, -0.125, -math.inf, -math.inf)]
    versions = recording.rows("SELECT DISTINCT version FROM response_tokens WHERE turn_id = 's0-0'")
    assert versions == [(1,)]


def test_the_reader_reads_and_writes_nothing(recording: Recording) -> None:
    with recording.engine.connect() as connection:
        connection.exec_driver_sql("SET ROLE hindstream_reader")
        assert connection.exec_driver_sql("SELECT turns_seen FROM ledger").scalar_one() == 10
        assert connection.exec_driver_sql("SELECT count(*) FROM turns").scalar_one() == 10
    for statement in ("DELETE FROM turns", "UPDATE rewards SET value = 0", "CREATE TABLE mine (a int)"):
        with recording.engine.connect() as connection:
            connection.exec_driver_sql("SET ROLE hindstream_reader")
            with pytest.raises(Exception, match="permission denied") as refused:
                connection.exec_driver_sql(statement)
            assert isinstance(refused.value.__cause__, psycopg.errors.InsufficientPrivilege)


def test_what_a_later_migration_makes_is_readable_too(recording: Recording) -> None:
    engine: Engine = recording.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE later AS SELECT 1 AS one")
    with engine.connect() as connection:
        connection.exec_driver_sql("SET ROLE hindstream_reader")
        assert connection.exec_driver_sql("SELECT one FROM later").scalar_one() == 1
