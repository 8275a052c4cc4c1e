"""`hindstream config show`: every setting, the value in force, and where it came from. Secrets are never printed."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, SecretStr

from hindstream.errors import UserError
from hindstream.settings import TOML_FILE, Settings, fallback_variable, given_in_environment, load_settings

MASK = "******"
LOCAL = "local stack"
# What an unset address means while the local stack runs.
STACK_GIVES = {
    ("kafka", "bootstrap_servers"): "bootstrap_servers",
    ("database", "url"): "database_url",
    ("policy", "url"): "policy_url",
}

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@dataclass(frozen=True)
class Row:
    """One setting as it is shown."""

    name: str
    """The path with dots: kafka.port."""
    value: str
    """Masked where secret; empty for none."""
    source: str
    """env NAME, file hindstream.toml, local stack, or default."""
    meaning: str


@app.callback()
def root() -> None:
    """The settings in force and where each came from."""


@app.command()
def show(explain: Annotated[bool, typer.Option(help="Say also what each setting means.")] = False) -> None:
    """Print every setting with its value and source."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("setting", "value", "from", *(["meaning"] if explain else [])):
        table.add_column(column, overflow="fold")
    for row in rows(load_settings()):
        table.add_row(row.name, row.value, row.source, *([row.meaning] if explain else []))
    # Without a terminal rich would fold at 80 columns; values are for copying.
    Console(width=None if sys.stdout.isatty() else 240, markup=False, highlight=False).print(table)


def rows(settings: Settings) -> list[Row]:
    """Every setting in the order of the tree."""
    from_file = _file_content()
    found = []
    for path, value, meaning in _leaves(settings, ()):
        variable = given_in_environment(path)
        if variable:
            source = f"env {variable}"
        elif _has(from_file, path):
            source = f"file {TOML_FILE}"
        elif value is None and (local := _from_stack(settings, path)):
            value, source = local, LOCAL
        elif value is not None and (variable := fallback_variable(path)):
            source = f"env {variable}"
        else:
            source = "default"
        found.append(Row(".".join(path), masked(value), source, meaning))
    return found


def masked(value: Any) -> str:
    """A value as text without its secrets: a SecretStr whole (but an address keeps its host), a password or token in an
    address, an argument that follows a flag named after a secret."""
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return _without_secrets(text) if "://" in text else MASK
    if isinstance(value, tuple):
        return _without_secrets(" ".join(value))
    return _without_secrets(str(value))


def _without_secrets(text: str) -> str:
    scheme, found, rest = text.partition("://")
    # Up to the last @, wherever it is: a password may hold any sign that nobody escaped. Masking too much is harmless.
    user_and_password, at, host = rest.rpartition("@")
    if found and at and ":" in user_and_password:
        text = f"{scheme}://{user_and_password.partition(':')[0]}:{MASK}@{host}"
    text = re.sub(r"(?i)([?&][a-z_-]*(?:pass|token|key|secret)[a-z_-]*=)[^&#]*", rf"\1{MASK}", text)
    return re.sub(r"(?i)(--[a-z-]*(?:pass|token|key|secret)[a-z-]*[= ])\S+", rf"\1{MASK}", text)


def _leaves(section: BaseModel, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value, " ".join((field.description or "").split())


def _file_content() -> dict[str, Any]:
    path = Path(TOML_FILE)
    return tomllib.loads(path.read_text()) if path.exists() else {}


def _has(tree: dict[str, Any], path: tuple[str, ...]) -> bool:
    for name in path[:-1]:
        tree = tree.get(name, {})
    return path[-1] in tree


def _from_stack(settings: Settings, path: tuple[str, ...]) -> str | None:
    if path not in STACK_GIVES:
        return None
    from hindstream.stack.local import Stack

    try:
        found: str | None = getattr(Stack(settings.home_dir, settings).endpoints(), STACK_GIVES[path])
    except UserError:  # a damaged state file must not keep anybody from seeing the settings
        return None
    return found
