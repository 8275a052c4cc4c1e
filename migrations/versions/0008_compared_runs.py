"""Two runs on the same turns: what each made of every turn, where their rewards and hints agree, who trained what.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COMPARED = """
CREATE VIEW compared_turns AS
SELECT a.run AS run_a, b.run AS run_b, a.session_id, a.turn_id,
       a.reward AS reward_a, b.reward AS reward_b,
       a.reward_status AS reward_status_a, b.reward_status AS reward_status_b,
       a.hint AS hint_a, b.hint AS hint_b, a.hint_status AS hint_status_a, b.hint_status AS hint_status_b,
       a.teacher_gain AS teacher_gain_a, b.teacher_gain AS teacher_gain_b,
       a.state AS state_a, b.state AS state_b, a.drop_reason AS drop_reason_a, b.drop_reason AS drop_reason_b,
       a.staleness AS staleness_a, b.staleness AS staleness_b
FROM turn_signals a
JOIN turn_signals b ON b.turn_id = a.turn_id AND b.run <> a.run
"""

REWARDS = """
CREATE VIEW reward_confusion AS
SELECT run_a, run_b, reward_a, reward_b, count(*) AS turns
FROM compared_turns WHERE reward_status_a IS NOT NULL OR reward_status_b IS NOT NULL
GROUP BY run_a, run_b, reward_a, reward_b
"""

HINTS = """
CREATE VIEW hint_agreement AS
SELECT run_a, run_b,
       count(*) FILTER (WHERE hint_a = hint_b) AS same,
       count(*) FILTER (WHERE hint_a <> hint_b) AS other_words,
       count(*) FILTER (WHERE hint_a IS NOT NULL AND hint_b IS NULL) AS only_a,
       count(*) FILTER (WHERE hint_a IS NULL AND hint_b IS NOT NULL) AS only_b
FROM compared_turns GROUP BY run_a, run_b
"""

TRAINED = """
CREATE VIEW trained_apart AS
SELECT run_a, run_b, state_a, drop_reason_a, state_b, drop_reason_b, count(*) AS turns
FROM compared_turns WHERE (state_a = 'trained') <> (state_b = 'trained')
GROUP BY run_a, run_b, state_a, drop_reason_a, state_b, drop_reason_b
"""

_A, _B = "Of the first run: ", "Of the second run: "
_EACH = {
    "reward": "+1, 0, -1; NULL where there is none.",
    "reward_status": "scored, tie, abstained or failed; NULL: not judged.",
    "hint": "the accepted hint.",
    "hint_status": "accepted, none or failed; NULL: not asked.",
    "teacher_gain": "mean of teacher minus behaviour log-prob, nats a token.",
    "state": "state of the sample.",
    "drop_reason": "why it was dropped.",
    "staleness": "weight versions between the tokens and the weights that used them; NULL in a replay.",
}
_RUNS = {"run_a": "The first run.", "run_b": "The second run."}

VIEWS = {
    "compared_turns": (
        COMPARED,
        "What did two runs make of the same turns? One row a pair of runs and turn; name both runs in WHERE.",
        _RUNS
        | {"session_id": "The session.", "turn_id": "The turn."}
        | {f"{name}_a": _A + words for name, words in _EACH.items()}
        | {f"{name}_b": _B + words for name, words in _EACH.items()},
    ),
    "reward_confusion": (
        REWARDS,
        "Where do the rewards of two runs agree? One row a pair of rewards; NULL is a turn without a reward, not 0.",
        _RUNS | {"reward_a": _A + _EACH["reward"], "reward_b": _B + _EACH["reward"], "turns": "How many turns."},
    ),
    "hint_agreement": (
        HINTS,
        "Do two runs find the same hints? One row a pair of runs.",
        _RUNS
        | {
            "same": "Turns with the same hint in both.",
            "other_words": "Turns with a hint in both, of other words.",
            "only_a": "Turns with a hint in the first alone.",
            "only_b": "Turns with a hint in the second alone.",
        },
    ),
    "trained_apart": (
        TRAINED,
        "Which turns did one run train and the other not, and why not? One row a pair of runs and reason.",
        _RUNS
        | {
            "state_a": _A + _EACH["state"],
            "state_b": _B + _EACH["state"],
            "drop_reason_a": _A + _EACH["drop_reason"],
            "drop_reason_b": _B + _EACH["drop_reason"],
            "turns": "How many turns.",
        },
    ),
}


def upgrade() -> None:
    """Create the views and say what each column means."""
    for name, (sql, comment, columns) in VIEWS.items():
        op.execute(sql)
        op.execute(f"COMMENT ON VIEW {name} IS '{comment}'")
        for column, words in columns.items():
            op.execute(f"COMMENT ON COLUMN {name}.{column} IS '{words}'")


def downgrade() -> None:
    """Drop the views."""
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW {name}")
