"""`hindstream`: finds the module of a sub-command and loads only that one, so `hindstream up` never imports
torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from hindstream.errors import UserError
from hindstream.settings import calm_threads

# Sub-command: (module, what it does, the name in that module). A module exposes `app`, a typer.Typer, or, for
# a command without sub-commands of its own, a function of the given name.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": (
        "hindstream.cli.stack",
        "Start what the settings do not give: broker, Postgres, model server.",
        "up",
    ),
    "down": ("hindstream.cli.stack", "Stop what `up` started; the data stay.", "down"),
    "status": ("hindstream.cli.stack", "What runs, where, since when.", "status"),
    "logs": ("hindstream.cli.stack", "Show a service's log, and follow it with -f.", "logs"),
    "config": ("hindstream.cli.config", "The settings in force and where each came from.", "app"),
    "topics": ("hindstream.cli.topics", "Create and check the Kafka topics.", "app"),
    "db": ("hindstream.cli.db", "Bring the database schema up to date.", "app"),
    "gateway": ("hindstream.cli.gateway", "The OpenAI-compatible server that records conversations.", "app"),
    "keys": ("hindstream.cli.keys", "Who may use the gateway: create, list and revoke keys.", "app"),
    "import": ("hindstream.cli.imports", "Bring historical conversations into the log.", "import_"),
    "erase": ("hindstream.cli.erase", "Remove what was said in a session, or by a user, for good.", "erase"),
    "export": ("hindstream.cli.export", "Archives of facts and derived rows; data sets for other trainers.", "app"),
    "dead-letters": (
        "hindstream.cli.dead_letters",
        "Records that could not be recorded: list, show, replay, drop.",
        "app",
    ),
    "cache": ("hindstream.cli.cache", "Answers of model servers that are kept: what they save.", "app"),
    "judge": ("hindstream.cli.judge", "How well judges do on labelled pairs.", "app"),
    "recipes": ("hindstream.cli.recipes", "List, show and compare recipes.", "app"),
    "worker": ("hindstream.cli.worker", "Record, link, judge, hint, teach, batch.", "app"),
    "learner": ("hindstream.cli.learner", "Turn micro-batches into weight versions.", "app"),
    "replay": ("hindstream.cli.replay", "Rerun the log, or files, under another recipe.", "replay"),
    "compare": ("hindstream.cli.compare", "What two runs made of the same turns.", "compare"),
    "estimate": ("hindstream.cli.estimate", "What a weight version would have earned on a log.", "estimate"),
    "runs": ("hindstream.cli.runs", "Runs: list, show, compare recipes, delete.", "app"),
    "weights": ("hindstream.cli.weights", "List, verify and serve weight versions.", "app"),
    "sql": ("hindstream.cli.sql", "Ask the database a question and print the rows.", "sql"),
    "dashboard": (
        "hindstream.cli.dashboard",
        "Watch a run: turns, signals, micro-batches, weights.",
        "dashboard",
    ),
    "demo": ("hindstream.cli.demo", "Watch a small model learn from conversations.", "demo"),
}


def _present(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


class LazyGroup(TyperGroup):
    """The command group: lists every sub-command that is there, imports one when it is called.

    typer carries a click of its own, whose types are private to it: hence Any.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, (module, _, _) in COMMANDS.items() if _present(module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS or not _present(COMMANDS[cmd_name][0]):
            return None
        module, summary, attribute = COMMANDS[cmd_name]
        target = getattr(importlib.import_module(module), attribute)
        command: Any
        if isinstance(target, typer.Typer):
            command = typer.main.get_command(target)
        else:
            single = typer.Typer(add_completion=False)
            single.command(name=cmd_name)(target)
            command = typer.main.get_command(single)
        command.name = cmd_name
        command.help = command.help or summary
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list from the table above: help must not import every room."""
        rows = [(name, COMMANDS[name][1]) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        calm_threads()
        try:
            return super().main(*args, **kwargs)
        except UserError as error:
            print(f"hindstream: {error}", file=sys.stderr)
            sys.exit(2)


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Learn from conversations as they happen.",
)


@app.callback()
def root() -> None:
    """Learn from conversations as they happen."""


if __name__ == "__main__":
    app()
