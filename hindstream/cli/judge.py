"""`hindstream judge`: how well judges do on pairs whose outcome is known."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hindstream.cli.worker import evaluators_config
from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.judging.asking import by_code, by_llm
from hindstream.judging.figures import Quality, Share, as_json, quality
from hindstream.recipes import load_recipe
from hindstream.settings import load_settings
from processors.evaluators.prompts import LABELS
from processors.evaluators.quality import FILE, pairs
from processors.evaluators.rules import rule_names
from schemas.recipes import InvalidRecipe, JudgeSpec

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

_WIDE = 100
"""Columns where the output is no terminal."""


@app.callback()
def root() -> None:
    """Judges: how well they do, and which rules there are."""


@app.command()
def evaluate(
    judge: Annotated[str, typer.Option("--judge", help="code, or llm: the server of HINDSTREAM_JUDGE__URL.")] = "code",
    recipe: Annotated[str, typer.Option("--recipe", help="A preset or file: its judge is measured.")] = "binary-rl",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe.")
    ] = None,
    file: Annotated[
        Path, typer.Option("--pairs", help="Labelled pairs, JSON Lines; default: those that come along.")
    ] = FILE,
    limit: Annotated[int | None, typer.Option(help="Only so many pairs, spread evenly over the file.", min=1)] = None,
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Accuracy, confusion, Cohen's kappa, abstentions and cost of a judge on labelled pairs."""
    spec = load_recipe(recipe, set_ or ()).judge
    if spec is None:
        raise UserError(f"recipe {recipe!r} has no judge; binary-rl has one")
    try:
        chosen = pairs(file)
    except (OSError, ValueError) as err:
        raise UserError(f"the pairs cannot be read: {err}") from None
    if limit is not None and limit < len(chosen):
        chosen = [chosen[place * len(chosen) // limit] for place in range(limit)]
    if judge == "code":
        try:
            figures = quality("code", chosen, *by_code(spec, chosen))
        except InvalidRecipe as err:
            raise UserError(str(err)) from None
    elif judge == "llm":
        if not spec.votes:
            raise UserError(f"recipe {recipe!r} asks no model: add --set judge.votes=3")
        settings = load_settings()
        config = evaluators_config(settings, resolve_endpoints(settings), teacher=False)
        assert config.judge is not None
        answers = asyncio.run(by_llm(spec, chosen, config.judge, characters=config.judge_characters))
        figures = quality(config.judge.model, chosen, *answers)
    else:
        raise UserError(f"--judge is {judge!r}; it is code or llm")
    if json_:
        print(json.dumps(as_json(figures), ensure_ascii=False))
    else:
        show(Console(width=None if sys.stdout.isatty() else _WIDE), figures)


@app.command()
def rules(recipe: Annotated[str, typer.Option("--recipe", help="Also say which of them it asks.")] = "") -> None:
    """The rules in Python that judge.functions can name."""
    asks = (load_recipe(recipe).judge or JudgeSpec()).functions if recipe else ()
    for name in rule_names():
        print(f"{name}{' (asked)' if name in asks else ''}")


def show(console: Console, figures: Quality) -> None:
    """The figures as tables."""
    table = Table(title=f"judge {figures.judge}", title_justify="left")
    for name in ("kind", "pairs", "scored", "right", "accuracy"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind, share in figures.by_kind.items():
        table.add_row(kind, *_cells(share))
    table.add_row("all", *_cells(figures.all))
    console.print(table)
    said = [*LABELS, None]
    confusion = Table(title="label, and what the judge said", title_justify="left")
    for name in ("label", *LABELS, "nothing"):
        confusion.add_column(name, justify="left" if name == "label" else "right")
    for label in LABELS:
        confusion.add_row(label, *(str(figures.confusion.get((label, word), 0)) for word in said))
    console.print(confusion)
    cost = figures.cost
    console.print(f"kappa {'-' if figures.kappa is None else f'{figures.kappa:.2f}'} over the scored pairs")
    console.print(", ".join(f"{status} {n}" for status, n in sorted(figures.statuses.items())))
    console.print(
        f"{cost.calls} calls, {_known(cost.prompt_tokens)} prompt and {_known(cost.completion_tokens)} completion "
        f"tokens, {cost.seconds:.2f} s"
    )


def _cells(share: Share) -> tuple[str, ...]:
    accuracy = "-" if share.accuracy is None else f"{share.accuracy:.1%}"
    return str(share.pairs), str(share.scored), str(share.right), accuracy


def _known(tokens: int | None) -> str:
    return "an unknown number of" if tokens is None else f"{tokens:,}"
