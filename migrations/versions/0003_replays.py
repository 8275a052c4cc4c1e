"""Replays: their ranges, the order of their turns, work that waits behind live work, and questions without a version.

The ledger of a replay counts what its reader took from the log, in the transaction that opened the samples; the ledger
of a live run counts the turns of the log that it follows, not those that a replay read from files.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

LEDGER = """
CREATE OR REPLACE VIEW ledger AS
SELECT r.run,
       seen.turns AS turns_seen,
       coalesce(s.trained, 0) AS trained,
       coalesce(s.ready, 0) AS ready,
       coalesce(s.batched, 0) AS batched,
       coalesce(s.pending, 0) AS pending,
       coalesce(s.dropped, 0) AS dropped,
       seen.turns - coalesce(s.total, 0) AS balance
FROM runs r
CROSS JOIN LATERAL ({seen}) seen
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state = 'trained') AS trained,
           count(*) FILTER (WHERE state IN ('ready', 'batched')) AS ready,
           count(*) FILTER (WHERE state = 'batched') AS batched,
           count(*) FILTER (WHERE state = 'pending') AS pending,
           count(*) FILTER (WHERE state = 'dropped') AS dropped,
           count(*) AS total
    FROM samples WHERE samples.run = r.run
) s ON true
"""

LIVE_ONLY = """
    SELECT count(*) AS turns FROM turns t
    WHERE t.created_at >= r.created_at AND (r.ended_at IS NULL OR t.created_at < r.ended_at)
"""

LIVE_OR_REPLAY = """
    SELECT CASE r.kind
        WHEN 'replay' THEN coalesce((SELECT p.turns_seen FROM replays p WHERE p.run = r.run), 0)
        ELSE (SELECT count(*) FROM turns t
              WHERE t.created_at >= r.created_at AND (r.ended_at IS NULL OR t.created_at < r.ended_at)
                AND t.log = 'agent-events')
    END AS turns
"""


REPLAYS = """
CREATE TABLE replays (
    run text NOT NULL CONSTRAINT pk_replays PRIMARY KEY CONSTRAINT fk_replays_run_runs REFERENCES runs (run),
    log text NOT NULL,
    starts jsonb NOT NULL,
    ends jsonb NOT NULL,
    next jsonb NOT NULL,
    selection jsonb NOT NULL,
    stop_after text NOT NULL CONSTRAINT ck_replays_stop_after CHECK (stop_after IN ('rewards', 'samples', 'weights')),
    turns_seen bigint DEFAULT 0 NOT NULL,
    read boolean DEFAULT false NOT NULL,
    finished_at timestamptz,
    created_at timestamptz DEFAULT now() NOT NULL
);
COMMENT ON TABLE replays IS
    'The range of a log that a replay reads, and how far it is; committed with the samples that it opens.';
COMMENT ON COLUMN replays.run IS 'The run, of kind replay.';
COMMENT ON COLUMN replays.log IS 'The topic, or file: and the digest of the files.';
COMMENT ON COLUMN replays.starts IS 'First offset of each partition; of files, of their events.';
COMMENT ON COLUMN replays.ends IS 'Offset after the last one of each partition, fixed at the start.';
COMMENT ON COLUMN replays.next IS 'Next offset to read of each partition: where a resume goes on.';
COMMENT ON COLUMN replays.selection IS 'What is taken of that range: sessions, share, seed.';
COMMENT ON COLUMN replays.stop_after IS 'rewards, samples or weights.';
COMMENT ON COLUMN replays.turns_seen IS 'Turns taken, counted as they came.';
COMMENT ON COLUMN replays.read IS 'The whole range was read.';
COMMENT ON COLUMN replays.finished_at IS 'When it had done all that stop_after names; NULL while it has not.';
COMMENT ON COLUMN replays.created_at IS 'When this row was inserted (database clock).';
"""

COLUMNS = """
ALTER TABLE turns ADD COLUMN log text DEFAULT 'agent-events' NOT NULL;
COMMENT ON COLUMN turns.log IS 'The log that brought it: the topic, or the files of a replay, which no live run sees.';
ALTER TABLE samples ADD COLUMN replay_order bigint;
COMMENT ON COLUMN samples.replay_order IS
    'Place of its turn in the log that a replay reads; NULL in a live run.';
CREATE INDEX ix_samples_replay_order ON samples (run, replay_order) WHERE replay_order IS NOT NULL;
ALTER TABLE evaluations ADD COLUMN priority integer DEFAULT 0 NOT NULL;
COMMENT ON COLUMN evaluations.priority IS 'Lower first: 0 live, 1 replay.';
DROP INDEX ix_evaluations_claimable;
CREATE INDEX ix_evaluations_claimable ON evaluations (signal, priority, available_at, created_at)
    WHERE state IN ('open', 'claimed');
ALTER TABLE model_answers ADD COLUMN question_digest text;
COMMENT ON COLUMN model_answers.question_digest IS
    'The same without the weight version that answered: what a replay asks.';
ALTER TABLE teacher_scores ADD COLUMN question_digest text;
COMMENT ON COLUMN teacher_scores.question_digest IS
    'SHA-256 of teacher, turn, hint and top_k: what a replay asks.';
CREATE INDEX ix_model_answers_question_digest ON model_answers (question_digest);
"""

BACK = """
ALTER TABLE teacher_scores DROP COLUMN question_digest;
DROP INDEX ix_model_answers_question_digest;
ALTER TABLE model_answers DROP COLUMN question_digest;
DROP INDEX ix_evaluations_claimable;
CREATE INDEX ix_evaluations_claimable ON evaluations (signal, available_at, created_at)
    WHERE state IN ('open', 'claimed');
ALTER TABLE evaluations DROP COLUMN priority;
DROP INDEX ix_samples_replay_order;
ALTER TABLE samples DROP COLUMN replay_order;
ALTER TABLE turns DROP COLUMN log;
DROP TABLE replays;
"""


def upgrade() -> None:
    """Create the table and the columns, and count by them."""
    op.execute(REPLAYS)
    op.execute(COLUMNS)
    op.execute(LEDGER.format(seen=LIVE_OR_REPLAY))


def downgrade() -> None:
    """Count as before, and drop what only replays use."""
    op.execute(LEDGER.format(seen=LIVE_ONLY))
    op.execute(BACK)
