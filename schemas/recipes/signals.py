"""Which signals a run makes of its turns: reward, hint, teacher's scores."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from schemas.events import NextStateKind
from schemas.recipes.base import AtLeastOne, Count, NotNegative, Spec


class TextRule(Spec, frozen=True, kw_only=True):
    """A CODE judge's rule for a next state's text: where `pattern` is found (case-insensitive), the vote is `score`."""

    pattern: str
    score: Literal[-1, 0, 1]
    kinds: list[NextStateKind] = msgspec.field(default_factory=lambda: ["user_reply"])


class JudgeSpec(Spec, frozen=True, kw_only=True):
    """How a turn is scored.

    The code judge looks first: a verdict, an exit code, then `rules` in order, the first that is found. Where it
    cannot tell, and `votes` > 0, the LLM judge is asked `votes` times (each with its own seed) and the majority of
    the valid votes is the reward; fewer than `quorum` valid votes give no reward (`abstained`).

    `functions`: rules in Python, by their name in the entry point group `hindstream.rules`; the code judge asks them in
    order, before `rules`.

    `combine`: what the reward is where judges of several kinds can tell. "first": people's, else code's, else the
    model's, which is asked only where neither can. "majority" and "all_agree" ask every kind that there is, and each
    has one voice: the score that most of them gave (as many for another: a tie, 0), or the one that all gave
    (`abstained` where they differ).
    """

    later: ClassVar[tuple[str, ...]] = ("functions", "combine")

    code: bool = True
    rules: list[TextRule] = msgspec.field(default_factory=list)
    votes: Count = 3
    quorum: int = 2
    temperature: NotNegative = 0.6
    max_tokens: AtLeastOne = 8
    functions: tuple[str, ...] = ()
    combine: Literal["first", "majority", "all_agree"] = "first"


class HintSpec(Spec, frozen=True, kw_only=True):
    """How a directive signal is found.

    With a `context` that is the hint of every answered turn, accepted as it stands; nothing else is looked for.
    Else `patterns` are tried first on a user's reply: the first match's group 1 (or the whole match) is the hint, made
    by code. Where none matches and `votes` > 0 the LLM is asked; of the accepted hints one is chosen by `select`.

    A hint is refused that is shorter than `min_characters`, that has fewer than `min_words` words with a meaning of
    their own, that repeats `max_quoted` or more words in a row of the answer or of a correction (0: never refused for
    that), or that holds an e-mail address, a telephone number or a key (unless `allow_private`).

    `select`: "longest"; or the teacher scores each: "overlap" takes the one under which its likeliest tokens are most
    often the policy's own, "gain" the one under which the answer became likeliest (ties: the earliest vote).

    `place`: where the teacher sees it, at the end of the last user message, of the system message, or of the last
    result of a tool since the last user message (without one: of that message).
    """

    later: ClassVar[tuple[str, ...]] = ("context", "place", "min_words", "max_quoted", "allow_private", "select")

    patterns: list[str] = msgspec.field(default_factory=list)
    votes: Count = 3
    temperature: NotNegative = 0.6
    max_tokens: AtLeastOne = 96
    min_characters: Count = 10
    context: str | None = None
    place: Literal["last_user", "system", "tool_result"] = "last_user"
    min_words: Count = 1
    max_quoted: Count = 8
    allow_private: bool = False
    select: Literal["longest", "overlap", "gain"] = "longest"


class TeacherSpec(Spec, frozen=True, kw_only=True):
    """Who scores the response under the hint: the teacher server's model, with `top_k` alternatives a token.

    `weights`: "server" takes the server's scores. "ema" and "best" score again inside the learner, with an
    exponential moving average of the policy's own weights (`ema_rate` a step) or with the past version whose turns
    were liked most (by the mean reward of at least `best_min_samples` samples); of the server they need only the
    prompt with the hint in it.

    `version`: only scores of this weight version of the served model count; None: of whichever it serves, and each
    keeps the version that gave it. `student_ids`: the policy server names the `distillation.k` tokens that are
    likeliest to the policy itself in each place, and the teacher scores those too, where `distillation.entries` are
    the student's.
    """

    later: ClassVar[tuple[str, ...]] = ("weights", "ema_rate", "best_min_samples", "version", "student_ids")

    top_k: Annotated[int, Meta(ge=4)] = 4
    weights: Literal["server", "ema", "best"] = "server"
    ema_rate: Annotated[float, Meta(gt=0, le=1)] = 0.05
    best_min_samples: AtLeastOne = 32
    version: Count | None = None
    student_ids: bool = False
