"""How far the votes on one turn agree.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

VIEW = """
CREATE VIEW judge_agreement AS
SELECT v.run, v.turn_id, v.signal,
       count(*) AS votes_total,
       count(*) FILTER (WHERE v.status = 'valid') AS votes_valid,
       count(*) FILTER (WHERE v.status = 'invalid') AS votes_invalid,
       count(*) FILTER (WHERE v.status = 'error') AS votes_error,
       greatest(count(*) FILTER (WHERE v.score = 1), count(*) FILTER (WHERE v.score = 0),
                count(*) FILTER (WHERE v.score = -1))::double precision
           / nullif(count(*) FILTER (WHERE v.status = 'valid'), 0) AS agreement,
       array_agg(DISTINCT v.annotator_kind) FILTER (WHERE v.status = 'valid') AS kinds
FROM votes v
GROUP BY v.run, v.turn_id, v.signal
"""

COLUMNS = {
    "run": "Its run.",
    "turn_id": "Its turn.",
    "signal": "reward or hint.",
    "votes_total": "Votes of all kinds.",
    "votes_valid": "Of them with a declared answer.",
    "votes_invalid": "Of them without one.",
    "votes_error": "Of them without any answer.",
    "agreement": "Share of the valid votes with the score that most gave, above 0 and at most 1; NULL without a valid one.",
    "kinds": "Who gave valid votes: CODE, HUMAN, LLM.",
}
REASON = (
    "Why there is none, or the fault.",
    "Why there is none, or the fault; of several accepted ones, why this one.",
)


def upgrade() -> None:
    """Create the view; a hint's reason may say why it was chosen."""
    op.execute(VIEW)
    op.execute(
        "COMMENT ON VIEW judge_agreement IS 'Do the votes on a turn agree? One row a run, turn and signal with votes.'"
    )
    for column, words in COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN judge_agreement.{column} IS '{words}'")
    op.execute(f"COMMENT ON COLUMN hints.reason IS '{REASON[1]}'")


def downgrade() -> None:
    """Drop the view."""
    op.execute(f"COMMENT ON COLUMN hints.reason IS '{REASON[0]}'")
    op.execute("DROP VIEW judge_agreement")
