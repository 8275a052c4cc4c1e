"""Views named for questions: does it balance, why was it not trained, where do these weights come from.

The ledger counts the turns that a run has seen from the facts and the run's range of the log, not from its samples,
so that a lost sample shows as a balance other than zero.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

LEDGER = """
CREATE VIEW ledger AS
SELECT r.run,
       seen.turns AS turns_seen,
       coalesce(s.trained, 0) AS trained,
       coalesce(s.ready, 0) AS ready,
       coalesce(s.batched, 0) AS batched,
       coalesce(s.pending, 0) AS pending,
       coalesce(s.dropped, 0) AS dropped,
       seen.turns - coalesce(s.total, 0) AS balance
FROM runs r
CROSS JOIN LATERAL (
    SELECT count(*) AS turns FROM turns t
    WHERE t.created_at >= r.created_at AND (r.ended_at IS NULL OR t.created_at < r.ended_at)
) seen
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

DROPS = """
CREATE VIEW drops AS
SELECT s.run, s.drop_reason, count(*) AS turns
FROM samples s WHERE s.state = 'dropped'
GROUP BY s.run, s.drop_reason
"""

CONVERSATIONS = """
CREATE VIEW conversations AS
SELECT t.session_id, t.turn_id, t.parent_turn_id, t.ordinal, t.kind,
       (SELECT m ->> 'content' FROM jsonb_array_elements(t.messages) WITH ORDINALITY AS e(m, i)
        WHERE m ->> 'role' = 'user' ORDER BY i DESC LIMIT 1) AS asked,
       t.response ->> 'content' AS answered,
       n.kind AS next_state_kind, n.content AS next_state, n.verdict, n.exit_code,
       t.oldest_version, t.newest_version, t.response_tokens
FROM turns t
LEFT JOIN next_states n ON n.turn_id = t.turn_id
"""

SIGNALS = """
CREATE VIEW turn_signals AS
SELECT s.run, s.session_id, s.turn_id, s.state, s.drop_reason, s.drop_detail,
       w.value AS reward, w.status AS reward_status, w.annotator_kind AS reward_by,
       w.votes_valid, w.votes_total, w.explanation AS reward_explanation,
       h.text AS hint, h.status AS hint_status, h.annotator_kind AS hint_by,
       c.mean_gain AS teacher_gain, c.teacher, c.teacher_version,
       s.micro_batch_id, s.staleness
FROM samples s
LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
LEFT JOIN hints h ON h.run = s.run AND h.turn_id = s.turn_id
LEFT JOIN teacher_scores c ON c.run = s.run AND c.turn_id = s.turn_id
"""

LINEAGE = """
CREATE VIEW lineage AS
SELECT v.policy, v.version, v.parent_version, v.run, v.recipe_digest, b.micro_batch_id, b.seq,
       s.position, s.sample_id, s.staleness, g.turn_id, g.session_id,
       g.reward, g.reward_by, g.hint, g.teacher_gain,
       t.messages, t.response ->> 'content' AS answered,
       (SELECT jsonb_agg(jsonb_build_object('kind', n.kind, 'content', n.content) ORDER BY n.ordinal)
        FROM next_states n WHERE n.turn_id = t.turn_id) AS next_states
FROM weight_versions v
JOIN micro_batches b ON b.micro_batch_id = v.micro_batch_id
JOIN samples s ON s.micro_batch_id = b.micro_batch_id AND s.state = 'trained'
JOIN turn_signals g ON g.run = s.run AND g.turn_id = s.turn_id
JOIN turns t ON t.turn_id = s.turn_id
"""

VIEWS = {
    "ledger": LEDGER,
    "drops": DROPS,
    "conversations": CONVERSATIONS,
    "turn_signals": SIGNALS,
    "lineage": LINEAGE,
}

COMMENTS = {
    "ledger": (
        "Does it balance? turns_seen = trained + ready + pending + dropped; balance is what is missing: 0.",
        {
            "run": "The run.",
            "turns_seen": "Turns of the log in the run's range, counted from the facts.",
            "trained": "Turns that a weight version has learned from.",
            "ready": "Turns whose signals are final, waiting for the learner (batched ones included).",
            "batched": "Of the ready ones: in a micro-batch that is published and not yet committed.",
            "pending": "Turns that wait for their next state or for their signals.",
            "dropped": "Turns that are not trained; the view drops says why.",
            "balance": "turns_seen minus the rest: anything but 0 is a lost or doubled turn.",
        },
    ),
    "drops": (
        "Why were turns not trained? One row a run and reason.",
        {
            "run": "The run.",
            "drop_reason": "One of the closed list in schemas/states.py.",
            "turns": "How many turns.",
        },
    ),
    "conversations": (
        "What was said? One row a turn and next state, in words.",
        {
            "session_id": "The session.",
            "turn_id": "The turn.",
            "parent_turn_id": "The turn before it in its branch.",
            "ordinal": "Place in its branch, from 0.",
            "kind": "main or side.",
            "asked": "Text of the last user message that the turn saw.",
            "answered": "Text of the response.",
            "next_state_kind": "Kind of what answered the turn; NULL: nothing did.",
            "next_state": "Its text.",
            "verdict": "An environment's judgement in [0, 1].",
            "exit_code": "A process's exit code.",
            "oldest_version": "Lowest weight version that made its tokens.",
            "newest_version": "Highest weight version that made its tokens.",
            "response_tokens": "Number of response tokens.",
        },
    ),
    "turn_signals": (
        "What did a run make of each turn? Reward, hint and teacher gain beside the sample's state.",
        {
            "run": "The run.",
            "session_id": "The session.",
            "turn_id": "The turn.",
            "state": "State of the sample.",
            "drop_reason": "Why it was dropped.",
            "drop_detail": "The same in words.",
            "reward": "+1, 0, -1; NULL where there is none, which is not 0.",
            "reward_status": "scored, tie, abstained or failed.",
            "reward_by": "LLM, CODE or HUMAN.",
            "votes_valid": "Valid votes.",
            "votes_total": "Votes asked for.",
            "reward_explanation": "Why, in words.",
            "hint": "The accepted hint.",
            "hint_status": "accepted, none or failed.",
            "hint_by": "LLM or CODE.",
            "teacher_gain": "Mean of teacher minus behaviour log-prob, nats a token.",
            "teacher": "Model of the teacher.",
            "teacher_version": "Weight version of the teacher.",
            "micro_batch_id": "The micro-batch that holds it.",
            "staleness": "Weight versions between its oldest token and the weights that used it.",
        },
    ),
    "lineage": (
        "Where do these weights come from? One row a weight version and trained turn, back to the text.",
        {
            "policy": "The policy.",
            "version": "The weight version.",
            "parent_version": "The version that it was trained from.",
            "run": "The run.",
            "recipe_digest": "The recipe.",
            "micro_batch_id": "The micro-batch that made it.",
            "seq": "The micro-batch's place in the run.",
            "position": "The sample's place in the micro-batch.",
            "sample_id": "The sample.",
            "staleness": "Weight versions between its oldest token and the weights that used it.",
            "turn_id": "The turn.",
            "session_id": "The session.",
            "reward": "Its reward.",
            "reward_by": "LLM, CODE or HUMAN.",
            "hint": "Its hint.",
            "teacher_gain": "Mean of teacher minus behaviour log-prob, nats a token.",
            "messages": "The messages that the turn saw.",
            "answered": "The response's text.",
            "next_states": "What answered it: kind and text.",
        },
    ),
}


def upgrade() -> None:
    """Create the views and say what each column means."""
    for name, sql in VIEWS.items():
        op.execute(sql)
        comment, columns = COMMENTS[name]
        op.execute(f"COMMENT ON VIEW {name} IS '{_quoted(comment)}'")
        for column, words in columns.items():
            op.execute(f"COMMENT ON COLUMN {name}.{column} IS '{_quoted(words)}'")


def downgrade() -> None:
    """Drop the views."""
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW {name}")


def _quoted(words: str) -> str:
    return words.replace("'", "''")
