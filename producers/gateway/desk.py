"""One chat request, whichever dialect it came in: located in its session, asked upstream, and recorded however it ends.

A whole answer is recorded before the caller hears it; of a stream every piece goes out first, and what came of it is
recorded after the last one, after a failure, or after the caller has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from producers.gateway.config import GatewayConfig
from producers.gateway.gathering import Gathered
from producers.gateway.metrics import Metrics
from producers.gateway.receipts import Receipt, Receipts
from producers.gateway.recorder import Recorder
from producers.gateway.requests import ChatRequest
from producers.gateway.sessions import Place, Siblings, locate
from producers.gateway.turns import Exchange, Outcome, events_of_group, failed
from producers.gateway.upstream import Upstream, UpstreamFailed
from schemas.envelope import utc_now
from schemas.events import FinishReason

log = logging.getLogger(__name__)


@dataclass
class Reply:
    """A whole answer and where it is recorded."""

    completion: dict[str, Any]
    receipt: Receipt


class TurnFailed(RuntimeError):
    """The policy gave no answer, or not all of it: `failure` says what the caller hears. `receipt` tells where the turn
    is recorded; None where the request was refused, which is no turn."""

    def __init__(self, failure: UpstreamFailed, receipt: Receipt | None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.receipt = receipt


@dataclass
class Streamed:
    """A stream that goes on: what is gathered of it, and its receipt once it has ended."""

    gathered: Gathered = field(default_factory=Gathered)
    receipt: Receipt | None = None


class Desk:
    """Takes requests to the server and their turns to the recorder."""

    def __init__(self, config: GatewayConfig, recorder: Recorder, metrics: Metrics) -> None:
        self._policy, self._user_secret = config.policy, config.user_secret
        self._recorder = recorder
        self._metrics = metrics
        self._siblings = Siblings()
        self.receipts = Receipts()

    def place(self, chat: ChatRequest) -> Place:
        """Where the request stands. Taken before it is asked, so that a sibling that ends first changes nothing."""
        return locate(chat.session_id, chat.messages, self._siblings, chat.next_state_kind)

    async def whole(self, upstream: Upstream, chat: ChatRequest) -> Reply:
        """The answer, recorded.

        Raises:
            TurnFailed: there is none.
        """
        place, started_at = self.place(chat), utc_now()
        try:
            answer = await upstream.ask(chat.body)
        except asyncio.CancelledError:
            self.submit(chat, place, [failed("aborted")], started_at, None)
            raise
        except UpstreamFailed as err:
            if err.refused:
                raise TurnFailed(err, None) from err
            receipt = self.submit(chat, place, [failed("error")], started_at, None)
            _warn(receipt, f"the model server failed ({err.status})")
            await receipt.settled()
            raise TurnFailed(err, receipt) from err
        receipt = self.submit(chat, place, answer.outcomes, started_at, answer.completion.get("id"))
        await receipt.settled()
        return Reply(answer.completion, receipt)

    async def stream(
        self, upstream: Upstream, chat: ChatRequest, streamed: Streamed
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of the answer. However the iteration ends, the turns are submitted and `streamed.receipt` is set.

        Raises:
            TurnFailed: there is no stream, or it was cut; then the chunks so far are recorded as an error.
        """
        place, started_at = self.place(chat), utc_now()
        gathered = streamed.gathered
        cut: FinishReason = "aborted"
        fault: str | None = None
        refused = False
        try:
            async with aclosing(upstream.stream(chat.body, gathered)) as chunks:
                async for chunk in chunks:
                    yield chunk
            cut = "error"  # a choice that has no end by now
            if gathered.failed or not gathered.finished:
                fault = "the model server's stream ended before the answer did"
        except UpstreamFailed as err:
            cut = "error"
            refused = err.refused and not gathered.candidates
            fault = f"the model server failed ({err.status})"
            raise TurnFailed(err, None) from err
        finally:
            if not refused:
                outcomes = gathered.outcomes(cut)
                streamed.receipt = self.submit(chat, place, outcomes, started_at, gathered.completion_id)
                if fault is not None:
                    _warn(streamed.receipt, fault)

    def submit(
        self,
        chat: ChatRequest,
        place: Place,
        outcomes: Sequence[Outcome],
        started_at: str,
        completion_id: str | None,
    ) -> Receipt:
        """Record one turn an outcome, candidates of one group where there are several. Returns at once; it is recorded
        even if nobody waits for it."""
        ended_at = utc_now()
        exchanges = [
            Exchange(
                session_id=chat.session_id,
                kind=chat.kind,
                body=chat.body,
                place=place,
                outcome=outcome,
                policy=self._policy,
                started_at=started_at,
                ended_at=ended_at,
                closes=chat.closes,
                tenant=chat.tenant,
                user_secret=self._user_secret,
            )
            for outcome in outcomes
        ]
        turn_ids, events = events_of_group(exchanges, self._siblings)
        for exchange in exchanges:
            self._metrics.turn(exchange)
        recording = self._recorder.submit(events) if chat.recorded else self._recorder.skip()
        receipt = Receipt(session_id=chat.session_id, turn_ids=turn_ids, recording=recording)
        self.receipts.keep(receipt, completion_id)
        return receipt


def _warn(receipt: Receipt, what: str) -> None:
    """Say it of the turn, whose id is a hash: the session's name and the server's words may be the caller's."""
    log.warning("turn %s: %s", ", ".join(receipt.turn_ids), what)
