"""Token arrays as rows, rewards and hints with what explains them, reward by weight version, and a role that reads.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

INTEGERS = """
CREATE FUNCTION unpack_ids(packed bytea) RETURNS TABLE ("position" integer, token_id integer)
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE ROWS 100 AS $$
    SELECT i, (get_byte(packed, 4 * i + 3) << 24) | (get_byte(packed, 4 * i + 2) << 16)
              | (get_byte(packed, 4 * i + 1) << 8) | get_byte(packed, 4 * i)
    FROM generate_series(0, length(packed) / 4 - 1) AS i
$$
"""
"""int32, little-endian, as `schemas.arrays.pack_ids` writes them."""

FLOATS = """
CREATE FUNCTION unpack_floats(packed bytea) RETURNS TABLE ("position" integer, value real)
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE ROWS 100 AS $$
    SELECT i, CASE
        WHEN e = 255 AND m <> 0 THEN 'NaN'::real
        WHEN e = 255 THEN CASE WHEN s = 0 THEN 'Infinity'::real ELSE '-Infinity'::real END
        WHEN e = 0 THEN ((1 - 2 * s) * m * power(2::double precision, -149))::real
        ELSE ((1 - 2 * s) * (8388608 + m) * power(2::double precision, e - 150))::real
    END
    FROM generate_series(0, length(packed) / 4 - 1) AS i
    CROSS JOIN LATERAL (
        SELECT get_byte(packed, 4 * i + 3) >> 7 AS s,
               ((get_byte(packed, 4 * i + 3) & 127) << 1) | (get_byte(packed, 4 * i + 2) >> 7) AS e,
               ((get_byte(packed, 4 * i + 2) & 127) << 16) | (get_byte(packed, 4 * i + 1) << 8)
               | get_byte(packed, 4 * i) AS m
    ) bits
$$
"""
"""float32, little-endian: sign, exponent, mantissa (IEEE 754)."""

RESPONSE_TOKENS = """
CREATE VIEW response_tokens AS
SELECT t.turn_id, t.session_id, i."position", i.token_id, l.value AS logprob,
       (SELECT (span ->> 'version')::integer FROM jsonb_array_elements(t.version_spans) span
        WHERE (span ->> 'start')::integer <= i."position" AND i."position" < (span ->> 'end')::integer LIMIT 1) AS version
FROM turns t
CROSS JOIN LATERAL unpack_ids(t.response_ids) i
LEFT JOIN LATERAL unpack_floats(t.response_logprobs) l ON l."position" = i."position"
"""

TEACHER_TOKENS = """
CREATE VIEW teacher_tokens AS
SELECT c.run, r.turn_id, r."position", r.token_id, r.logprob, s.value AS teacher_logprob,
       s.value - r.logprob AS gain
FROM teacher_scores c
JOIN response_tokens r ON r.turn_id = c.turn_id
JOIN LATERAL unpack_floats(c.logprobs) s ON s."position" = r."position"
"""

REWARD_DETAILS = """
CREATE VIEW reward_details AS
SELECT w.run, w.turn_id, w.status, w.value AS reward, w.annotator_kind, w.votes_valid, w.votes_total, w.explanation,
       v.vote, v.annotator, v.status AS vote_status, v.score, v.explanation AS vote_explanation, v.raw
FROM rewards w
LEFT JOIN votes v ON v.run = w.run AND v.turn_id = w.turn_id AND v.signal = 'reward'
"""

HINT_DETAILS = """
CREATE VIEW hint_details AS
SELECT h.run, h.turn_id, h.status, h.text AS hint, h.annotator_kind, h.votes_valid, h.votes_total, h.reason,
       c.teacher, c.teacher_version, c.mean_gain
FROM hints h
LEFT JOIN teacher_scores c ON c.run = h.run AND c.turn_id = h.turn_id
"""

REWARD_BY_VERSION = """
CREATE VIEW reward_by_version AS
SELECT w.run, t.policy, t.newest_version AS version, count(*) AS turns, avg(w.value) AS mean_reward,
       count(*) FILTER (WHERE w.value > 0) AS liked, count(*) FILTER (WHERE w.value < 0) AS disliked,
       avg(t.response_tokens) AS mean_tokens
FROM rewards w
JOIN turns t ON t.turn_id = w.turn_id
WHERE w.value IS NOT NULL
GROUP BY w.run, t.policy, t.newest_version
"""

_RUN, _TURN = {"run": "The run."}, {"turn_id": "The turn."}
_TOKEN = {
    "position": "Place in the response, from 0.",
    "token_id": "The sampled token.",
    "logprob": "Its log-prob, nats.",
}

VIEWS = {
    "response_tokens": (
        RESPONSE_TOKENS,
        "Which tokens were sampled? One row a response token; name the turns in WHERE, there are many.",
        _TURN | {"session_id": "The session."} | _TOKEN | {"version": "Weight version that sampled it."},
    ),
    "teacher_tokens": (
        TEACHER_TOKENS,
        "What did the teacher think of each token? One row a response token with teacher scores.",
        _RUN
        | _TURN
        | _TOKEN
        | {"teacher_logprob": "Log-prob by the teacher under the hint, nats.", "gain": "Teacher minus student, nats."},
    ),
    "reward_details": (
        REWARD_DETAILS,
        "Why this reward? One row a reward and vote; a reward without votes has one row.",
        _RUN
        | _TURN
        | {
            "status": "scored, tie, abstained or failed.",
            "reward": "+1, 0, -1; NULL where there is none.",
            "annotator_kind": "LLM, CODE or HUMAN.",
            "votes_valid": "Valid votes.",
            "votes_total": "Votes asked for.",
            "explanation": "Why, in words.",
            "vote": "Number of the vote, from 0.",
            "annotator": "Model, rule or person.",
            "vote_status": "valid, invalid or error.",
            "score": "The vote.",
            "vote_explanation": "Why the vote fell so.",
            "raw": "The judge's text as it came.",
        },
    ),
    "hint_details": (
        HINT_DETAILS,
        "Which hints were found, and what did the teacher gain by them? One row a turn that was asked.",
        _RUN
        | _TURN
        | {
            "status": "accepted, none or failed.",
            "hint": "The chosen hint.",
            "annotator_kind": "LLM or CODE.",
            "votes_valid": "Valid votes.",
            "votes_total": "Votes asked for.",
            "reason": "Why there is none.",
            "teacher": "Model of the teacher.",
            "teacher_version": "Weight version of the teacher.",
            "mean_gain": "Mean of teacher minus behaviour log-prob, nats a token.",
        },
    ),
    "reward_by_version": (
        REWARD_BY_VERSION,
        "Does the policy get better? One row a run and weight version that answered.",
        _RUN
        | {
            "policy": "The policy that answered.",
            "version": "Newest weight version among the turn's tokens; NULL where unknown.",
            "turns": "Turns with a reward.",
            "mean_reward": "Mean reward, in [-1, 1].",
            "liked": "Turns with a reward above 0.",
            "disliked": "Turns with a reward below 0.",
            "mean_tokens": "Mean length of the responses, tokens.",
        },
    ),
}

READER = "hindstream_reader"

ROLE = f"""
DO $$ BEGIN
    CREATE ROLE {READER} NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this server made it
END $$
"""
"""Roles belong to the server, not to the database."""


def upgrade() -> None:
    """Create functions and views, and the role that may read everything."""
    op.execute(INTEGERS)
    op.execute(FLOATS)
    op.execute("COMMENT ON FUNCTION unpack_ids(bytea) IS 'int32 arrays such as turns.response_ids as rows'")
    op.execute("COMMENT ON FUNCTION unpack_floats(bytea) IS 'float32 arrays such as turns.response_logprobs as rows'")
    for name, (sql, comment, columns) in VIEWS.items():
        op.execute(sql)
        op.execute(f"COMMENT ON VIEW {name} IS '{comment}'")
        for column, words in columns.items():
            escaped = words.replace("'", "''")
            op.execute(f"COMMENT ON COLUMN {name}.{column} IS '{escaped}'")
    op.execute(ROLE)
    op.execute(f"GRANT USAGE ON SCHEMA public TO {READER}")
    op.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {READER}")
    op.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {READER}")


def downgrade() -> None:
    """Drop functions and views; the role stays, since other databases of the server may use it."""
    op.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE SELECT ON TABLES FROM {READER}")
    op.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {READER}")
    op.execute(f"REVOKE USAGE ON SCHEMA public FROM {READER}")
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW {name}")
    op.execute("DROP FUNCTION unpack_floats(bytea)")
    op.execute("DROP FUNCTION unpack_ids(bytea)")
