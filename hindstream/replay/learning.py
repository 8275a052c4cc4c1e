"""The learner of a replay: a process beside it, with the replay's run, policy and recipe as its settings."""

from __future__ import annotations

from types import TracebackType

import msgspec

from hindstream.endpoints import Resolved
from hindstream.services import Service, Services
from hindstream.settings import Settings
from processors.replay.service import ReplayConfig
from schemas.digests import digest_of

_NAME = "learner"


class ReplayLearner:
    """Runs `hindstream learner run` for the replay while the block lasts."""

    def __init__(self, settings: Settings, endpoints: Resolved, config: ReplayConfig) -> None:
        directory = settings.home_dir / "replays" / digest_of(config.run)[:16]
        directory.mkdir(parents=True, exist_ok=True)
        recipe = directory / "recipe.json"
        recipe.write_bytes(msgspec.json.encode(config.recipe))
        self._services = Services(
            directory,
            {
                "HINDSTREAM_HOME": str(settings.home_dir),
                "HINDSTREAM_RUN__NAME": config.run,
                "HINDSTREAM_RUN__POLICY": config.policy,
                "HINDSTREAM_RUN__RECIPE": str(recipe),
                "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": endpoints.bootstrap_servers,
                "HINDSTREAM_DATABASE__URL": endpoints.database_url,
            },
            tied=True,  # a policy has one learner: one that outlives a killed replay would keep the next from resuming
        )

    def __enter__(self) -> ReplayLearner:
        self._services.start(Service(name=_NAME, arguments=("learner", "run")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._services.stop()

    def check(self) -> None:
        """Nothing to do while it runs.

        Raises:
            UserError: it ended; with the end of its log.
        """
        self._services.check()
