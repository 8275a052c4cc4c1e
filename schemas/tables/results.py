"""Results: votes, rewards, hints and teacher scores. NULL is never zero: what failed is a status."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from schemas.states import ANNOTATOR_KINDS, HINT_STATUSES, REWARD_STATUSES, VOTE_STATUSES
from schemas.tables.base import created_at, metadata, one_of


def _run_and_turn() -> tuple[Column[str], Column[str]]:
    return (
        Column("run", Text, ForeignKey("runs.run"), nullable=False, comment="Its run."),
        Column("turn_id", Text, ForeignKey("turns.turn_id"), nullable=False, comment="Its turn."),
    )


votes = Table(
    "votes",
    metadata,
    *_run_and_turn(),
    Column("signal", Text, nullable=False, comment="reward or hint."),
    Column("vote", Integer, nullable=False, comment="Number of the vote, from 0."),
    Column("annotator_kind", Text, nullable=False, comment="LLM, CODE or HUMAN."),
    Column("annotator", Text, nullable=False, comment="Model, rule or person."),
    Column("status", Text, nullable=False, comment="valid, invalid (no declared answer) or error (no answer)."),
    Column("score", SmallInteger, comment="+1, 0 or -1 of a valid vote; NULL otherwise."),
    Column("explanation", Text, comment="The hint of a hint vote, or why the vote fell so."),
    Column("raw", Text, comment="The judge's text as it came."),
    Column("prompt_digest", Text, comment="SHA-256 of the prompt template; NULL for code."),
    Column("answer_digest", Text, comment="Key of the answer in model_answers; NULL for code."),
    created_at(),
    PrimaryKeyConstraint("run", "turn_id", "signal", "vote"),
    Index("ix_votes_turn_id", "turn_id"),
    one_of("signal", ("reward", "hint")),
    one_of("status", VOTE_STATUSES),
    one_of("annotator_kind", ANNOTATOR_KINDS),
    CheckConstraint("(status = 'valid') = (score IS NOT NULL)", name="valid_has_score"),
    comment="Every single vote, invalid ones too, with its raw text.",
)

rewards = Table(
    "rewards",
    metadata,
    *_run_and_turn(),
    Column("status", Text, nullable=False, comment="scored, tie, abstained or failed."),
    Column("value", Double, comment="+1, 0 or -1; NULL where abstained or failed, never 0 instead."),
    Column("annotator_kind", Text, comment="LLM, CODE or HUMAN; NULL where failed."),
    Column("votes_valid", Integer, nullable=False, comment="Valid votes."),
    Column("votes_total", Integer, nullable=False, comment="Votes asked for."),
    Column("explanation", Text, comment="Why, in words."),
    created_at(),
    PrimaryKeyConstraint("run", "turn_id"),
    Index("ix_rewards_turn_id", "turn_id"),
    one_of("status", REWARD_STATUSES),
    one_of("annotator_kind", ANNOTATOR_KINDS),
    CheckConstraint("(status IN ('scored', 'tie')) = (value IS NOT NULL)", name="null_is_not_zero"),
    comment="The evaluative signal: the majority of the valid votes.",
)

hints = Table(
    "hints",
    metadata,
    *_run_and_turn(),
    Column("status", Text, nullable=False, comment="accepted, none (nothing to learn from) or failed."),
    Column("text", Text, comment="The chosen hint; NULL unless accepted."),
    Column("annotator_kind", Text, comment="LLM or CODE; NULL where failed."),
    Column("votes_valid", Integer, nullable=False, comment="Valid votes."),
    Column("votes_total", Integer, nullable=False, comment="Votes asked for."),
    Column("reason", Text, comment="Why there is none, or the fault; of several accepted ones, why this one."),
    created_at(),
    PrimaryKeyConstraint("run", "turn_id"),
    Index("ix_hints_turn_id", "turn_id"),
    one_of("status", HINT_STATUSES),
    CheckConstraint("(status = 'accepted') = (text IS NOT NULL)", name="accepted_has_text"),
    comment="The directive signal: what the next state says the turn should have done.",
)

teacher_scores = Table(
    "teacher_scores",
    metadata,
    *_run_and_turn(),
    Column("teacher", Text, nullable=False, comment="Model name of the teacher."),
    Column("teacher_version", Integer, comment="Weight version that scored; NULL where the server did not say."),
    Column("hinted_prompt_ids", LargeBinary, nullable=False, comment="int32: the prompt with the hint in it."),
    Column("logprobs", LargeBinary, nullable=False, comment="float32, one for each response token."),
    Column("top_k", Integer, nullable=False, comment="Alternatives a token."),
    Column("topk_ids", LargeBinary, nullable=False, comment="int32 [response_tokens, top_k], row-major."),
    Column("topk_logprobs", LargeBinary, nullable=False, comment="float32 [response_tokens, top_k], row-major."),
    Column(
        "mean_gain",
        Double,
        comment="Mean of teacher minus behaviour log-prob over the response, nats a token.",
    ),
    Column("answer_digest", Text, comment="Key of the answer in model_answers."),
    Column("question_digest", Text, comment="SHA-256 of teacher, turn, hint and top_k: what a replay asks."),
    Column("student_k", Integer, comment="The policy's own likeliest tokens a place; NULL where none were asked for."),
    Column(
        "student_ids", LargeBinary, comment="int32 [response_tokens, student_k], row-major, by the policy's own rank."
    ),
    Column(
        "student_logprobs",
        LargeBinary,
        comment="float32 [response_tokens, student_k]: the teacher's log-probs of student_ids; NaN: not known.",
    ),
    Column("student_version", Integer, comment="Weight version of the policy that named them; NULL: it did not say."),
    created_at(),
    PrimaryKeyConstraint("run", "turn_id"),
    Index("ix_teacher_scores_turn_id", "turn_id"),
    comment="The teacher's log-probs of the original response ids under the hint.",
)

model_answers = Table(
    "model_answers",
    metadata,
    Column("answer_digest", Text, primary_key=True, comment="SHA-256 of everything that shaped the answer."),
    Column("question_digest", Text, comment="The same without the weight version that answered: what a replay asks."),
    Column("purpose", Text, nullable=False, comment="reward, hint or teacher."),
    Column("model", Text, nullable=False, comment="Model that answered."),
    Column("answer", JSONB, nullable=False, comment="The answer as it came."),
    Column("session_id", Text, comment="The session that it was asked about first; NULL: about none."),
    created_at(),
    Index("ix_model_answers_question_digest", "question_digest"),
    Index("ix_model_answers_session_id", "session_id", postgresql_where=text("session_id IS NOT NULL")),
    one_of("purpose", ("reward", "hint", "teacher")),
    comment="Answers of model servers by the digest of the question: the same question is never paid for twice.",
)
