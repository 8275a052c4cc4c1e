"""Writing what is known: however long the database is away, and without one bad row holding up the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from processors.evaluators.completion import Outcome, complete
from processors.evaluators.deciding import failed
from processors.health import Health
from processors.retrying import FIRST_WAIT_S, LONGEST_WAIT_S
from processors.transactions import Transactions
from schemas.database import in_words, is_refused, is_transient

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Writer:
    """Transactions that must happen. `stop`: when it is set, a database that is away is waited for no longer."""

    def __init__(self, transactions: Transactions, health: Health, stop: asyncio.Event) -> None:
        self._transactions, self._health, self._stop = transactions, health, stop

    async def persist(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work` in a transaction, tried again while the database is away. The claim's heartbeat is away with it; if
        somebody else takes the claim meanwhile, then `work`, being conditional on the claim, writes nothing."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return await self._transactions.run(work, *args, **kwargs)
            except SQLAlchemyError as err:
                if not is_transient(err) or self._stop.is_set():
                    raise
                self._health.waiting("evaluators", in_words(err))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    async def complete(self, outcomes: list[Outcome]) -> None:
        """Finish all. One whose rows the database refuses fails, with that reason, and the others are finished."""
        try:
            lost = await self.persist(complete, outcomes)
        except SQLAlchemyError as err:
            if not is_refused(err):
                raise
            if len(outcomes) > 1:
                for outcome in outcomes:
                    await self.complete([outcome])
                return
            (refused,) = outcomes
            log.exception("%s of turn %s", refused.claim.signal, refused.claim.turn_id)
            reason = f"the database refused the result: {in_words(err)}"
            lost = await self.persist(complete, [failed(refused.claim, refused.session_id, reason)])
        for claim in lost:
            log.warning("%s of turn %s was finished by another worker", claim.signal, claim.turn_id)
