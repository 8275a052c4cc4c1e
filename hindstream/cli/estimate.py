"""`hindstream estimate`: what a weight version would have earned on a recorded log, or that this cannot be said."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings
from schemas.database import in_words


def estimate(
    version: Annotated[int, typer.Argument(help="The weight version.")],
    run: Annotated[
        str, typer.Option(help="The run whose turns and rewards are used; default: the settings' run.")
    ] = "",
    policy: Annotated[str, typer.Option(help="The version's policy; default: that of the run.")] = "",
    least: Annotated[float, typer.Option(help="Effective trajectories below which no number is given.", min=1)] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Importance-weighted estimates of the mean reward a turn, with effective sample size and 95 % bounds."""
    from hindstream.scoring import score_by_version
    from learner.policy_value import Trajectory, estimates
    from learner.recorded import log_weights, recorded_paths

    settings = load_settings()
    name = run or settings.run.name
    engine = create_engine(resolve_endpoints(settings).database_url)
    try:
        with engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT policy FROM runs WHERE run = %(run)s AND deleted_at IS NULL", {"run": name}
            ).scalar_one_or_none()
            if found is None:
                raise UserError(f"there is no run {name!r}; `hindstream runs list` shows those that there are")
            recorded = recorded_paths(connection, name)
            flat = {turn.sample.sample_id: turn.sample for path in recorded.paths for turn in path}
            if not flat:
                raise UserError(f"run {name!r} has no session that can be weighed{_left_out(recorded.left_out)}")
            scores = score_by_version(connection, settings, policy or found, version, list(flat.values()))
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None
    finally:
        engine.dispose()
    by_turn = dict(zip(flat, scores, strict=True))
    trajectories = [
        Trajectory(
            log_weights(path, [by_turn[turn.sample.sample_id] for turn in path]),
            np.array([turn.reward for turn in path], dtype=np.float64),
        )
        for path in recorded.paths
    ]
    try:
        made = estimates(trajectories, least_effective=least, seed=seed)
    except ValueError as err:
        raise UserError(f"run {name!r}: {err}") from None
    if json_:
        print(
            json.dumps(
                {
                    "run": name,
                    "version": version,
                    "left_out": recorded.left_out,
                    "estimates": [asdict(one) for one in made],
                }
            )
        )
        return
    table = Table("estimate", "mean reward", "95 %", "effective / all", box=box.SIMPLE)
    for one in made:
        bounds = "–" if one.low is None else f"{one.low:+.3f} to {one.high:+.3f}"
        value = "not given" if one.value is None else f"{one.value:+.3f}"
        table.add_row(one.method.replace("_", "-"), value, bounds, f"{one.effective:.1f} / {one.trajectories}")
    console = Console()
    console.print(table)
    for one in made:
        if one.refused:
            console.print(f"{one.method.replace('_', '-')}: {one.refused}", highlight=False)
    if recorded.left_out:
        console.print(f"sessions left out{_left_out(recorded.left_out)}", highlight=False)


def _left_out(reasons: dict[str, int]) -> str:
    return f": {', '.join(f'{count} because {reason}' for reason, count in reasons.items())}" if reasons else ""
