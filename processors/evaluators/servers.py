"""The model servers of an evaluator service: whether they suffice, and what they answer to a claim."""

from __future__ import annotations

from dataclasses import replace

import aiohttp

from processors.evaluators.choosing import accepted_hints, asks_teacher, choose
from processors.evaluators.completion import Outcome
from processors.evaluators.config import EvaluatorsConfig, ServerConfig
from processors.evaluators.deciding import asks_a_model, by_model, failed
from processors.evaluators.fingerprint import check_same_tokenizer, check_tokenizer_of
from processors.evaluators.hint import HintResult
from processors.evaluators.inputs import Answered, Turn, load_hint, load_turn
from processors.evaluators.kept_scores import Asking
from processors.evaluators.limit import AdaptiveLimit, LimitFigures
from processors.evaluators.llm_judge import Panel
from processors.evaluators.plain_teacher import score_answer
from processors.evaluators.queue import Claim, Signal
from processors.evaluators.score_reading import TeacherFailed
from processors.evaluators.server import ModelServer, PermanentFault, ServerFault, TransientFault
from processors.evaluators.teacher import score_under_hint
from processors.evaluators.wanted import Wanted
from processors.health import Health
from processors.patience import Pause
from processors.transactions import Transactions
from schemas.adapter_names import version_name
from schemas.chat_tokens import ChatTokens
from schemas.recipes import Recipe


class NotConfigured(ValueError):
    """A run asks for a model server that the service was not given: which run, which setting."""


class Servers:
    """Judge, teacher and policy, as far as they are configured. `teacher_ready`: its tokenizer was compared."""

    def __init__(
        self,
        config: EvaluatorsConfig,
        transactions: Transactions,
        http: aiohttp.ClientSession,
        health: Health | None = None,
    ) -> None:
        self._transactions = transactions
        self._health = health or Health()
        self._characters = config.judge_characters
        self.limits: dict[str, AdaptiveLimit] = {}
        """By address: judge, hint giver and teacher that are one server share its limit."""
        judge = self._server(config.judge, http)
        self._panel = Panel(judge, transactions) if judge else None
        self._replay_panel = Panel(judge, transactions, replayed=True) if judge else None
        self._teacher = self._server(config.teacher, http)
        self._policy = self._server(config.policy, http)
        self._chat = ChatTokens(config.tokenizer) if config.tokenizer else None
        self._http = http
        self._versions: dict[str, ModelServer] = {}
        self.teacher_ready = False

    def limit_of(self, signal: Signal) -> AdaptiveLimit | None:
        """Of the server that answers `signal`; None where there is none."""
        server = self._teacher if signal == "teacher" else self._panel.server if self._panel else None
        return server.limit if server else None

    def _server(self, config: ServerConfig | None, http: aiohttp.ClientSession) -> ModelServer | None:
        if config is None:
            return None
        part = f"server {config.url}"

        def changed(why: str | None, figures: LimitFigures) -> None:
            if why is None:
                self._health.ok(part)
            else:
                self._health.waiting(part, f"{figures.in_words()}; {why}")

        limit = self.limits.setdefault(config.url, AdaptiveLimit(config.concurrency, changed=changed))
        limit.allow(config.concurrency)
        return ModelServer(config, http, limit)

    def require(self, recipes: dict[str, Recipe]) -> None:
        """Refuse runs that ask for a server which is not there, instead of leaving every turn of theirs unscored.

        Raises:
            NotConfigured: there is such a run.
        """
        for run, recipe in recipes.items():
            if self._panel is None and asks_a_model(recipe):
                raise NotConfigured(
                    f"run {run!r} asks a model for votes and no judge is configured: set HINDSTREAM_JUDGE__URL, "
                    "or set votes to 0 in its recipe"
                )
            if self._teacher is None and recipe.teacher is not None:
                raise NotConfigured(
                    f"run {run!r} asks for a teacher's scores and none is configured: set HINDSTREAM_TEACHER__URL"
                )

    async def check_teacher(self, pause: Pause) -> None:
        """Let teacher work begin once both servers answer and tokenize alike; a server that is away is waited for.

        Raises:
            TokenizerMismatch: they do not.
        """
        while self._teacher and not pause.stopped:
            try:
                if self._policy:
                    await check_same_tokenizer(self._policy, self._teacher, self._chat)
                elif self._chat:
                    await check_tokenizer_of(self._chat, self._teacher)
            except ServerFault as fault:
                await pause.after_fault(str(fault))
            else:
                pause.succeeded()
                self.teacher_ready = True
                return

    async def answer(self, claim: Claim, answered: Answered, recipe: Recipe) -> tuple[Outcome, str | None]:
        """The outcome, and why another try might better it (None: it is final).

        Raises:
            TransientFault: no answer now.
        """
        turn = await self._transactions.run(load_turn, claim.turn_id)
        if claim.signal != "teacher":
            panel = self._replay_panel if claim.replayed else self._panel
            assert panel is not None
            outcome, again = await by_model(claim, answered, recipe, turn, panel, characters=self._characters)
            if asks_teacher(recipe, outcome):
                outcome = await self._chosen(outcome, recipe, turn)
            return outcome, again
        assert self._teacher is not None
        if recipe.teacher is None:
            return failed(claim, answered.session_id, "no_teacher: the run's recipe has none"), None
        wanted = Wanted.of(recipe)
        asking = await self._asking(claim, wanted)
        try:
            if recipe.hint is None:
                scores = await score_answer(asking, turn, self._chat, wanted)
            elif (hint := await self._transactions.run(load_hint, claim.run, claim.turn_id)) is not None:
                scores = await score_under_hint(asking, turn, hint, wanted)
            else:
                return failed(claim, answered.session_id, "no_hint: the run has no accepted hint for the turn"), None
        except TeacherFailed as fault:
            return failed(claim, answered.session_id, str(fault)), None
        return Outcome(claim=claim, session_id=answered.session_id, result=scores, reason=scores.note), None

    async def _asking(self, claim: Claim, wanted: Wanted) -> Asking:
        assert self._teacher is not None
        return Asking(
            teacher=self._teacher if wanted.version is None else await self._teacher_at(wanted.version),
            policy=self._policy or self._teacher,
            transactions=self._transactions,
            replayed=claim.replayed,
        )

    async def _teacher_at(self, version: int) -> ModelServer:
        """The teacher; where its server has the version as an adapter under a name of its own, by that name.

        Raises:
            TransientFault: no answer now.
        """
        teacher = self._teacher
        assert teacher is not None
        name = version_name(teacher.config.model, version)
        try:  # each time: a server that was restarted has lost its adapters
            served = (await teacher.get("/v1/models")).get("data") or []
        except PermanentFault:
            return teacher
        if name not in {entry.get("id") for entry in served}:
            return teacher
        if name not in self._versions:
            self._versions[name] = ModelServer(teacher.config, self._http, teacher.limit)
            self._versions[name].asked_as = name
        return self._versions[name]

    async def _chosen(self, outcome: Outcome, recipe: Recipe, turn: Turn) -> Outcome:
        """`outcome` with the hint that the recipe's rule takes.

        Raises:
            TransientFault: no answer now.
        """
        hint, result = recipe.hint, outcome.result
        assert hint is not None
        assert hint.select != "longest"
        assert isinstance(result, HintResult)
        if self._teacher is None or recipe.teacher is None or not self.teacher_ready:
            raise TransientFault("the teacher, which chooses among the hints, is not there yet")
        wanted = Wanted.of(recipe)
        asking = await self._asking(outcome.claim, wanted)
        chosen = await choose(hint.select, accepted_hints(outcome.votes), turn, asking, wanted)
        return replace(outcome, result=replace(result, text=chosen.text, reason=chosen.why))
