"""`hindstream weights pin|unpin|prune|upload|fetch|rebuild`: whose files stay, where copies are, and made again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.learning import learner_config
from hindstream.settings import load_settings
from schemas.database import in_words

if TYPE_CHECKING:
    from learner.config import LearnerConfig

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PolicyOption = Annotated[str | None, typer.Option("--policy", help="The policy; default: the one of the settings.")]
Holder = Annotated[str, typer.Option(help="Who needs the version. The files stay until every holder has unpinned.")]


@app.command()
def pin(version: int, policy: PolicyOption = None, holder: Holder = "user") -> None:
    """Keep a version's files, however old it gets."""
    from learner import retention
    from learner.manifest import has_weights
    from learner.stored import stored_version

    with _working(policy) as (config, engine), engine.begin() as connection:
        new = retention.pin(connection, config.policy, version, holder)
        there = has_weights(stored_version(connection, config.weights_dir, config.policy, version).path)
    print(f"version {version}: {'pinned' if new else 'was pinned already'} by {holder}")
    if not there:
        print(f"its files were deleted before; `hindstream weights fetch {version}` brings them back from their copy")


@app.command()
def unpin(version: int, policy: PolicyOption = None, holder: Holder = "user") -> None:
    """Take a pin back. Exit code 1 where there was none."""
    from learner import retention

    with _working(policy) as (config, engine), engine.begin() as connection:
        gone = retention.unpin(connection, config.policy, version, holder)
    print(f"version {version}: {'no longer' if gone else 'was not'} pinned by {holder}")
    raise typer.Exit(0 if gone else 1)


@app.command()
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, and why the rest stays.")] = False,
    policy: PolicyOption = None,
) -> None:
    """Delete the files of versions that nobody needs, as the learner does after each step; rows and manifests stay."""
    from learner.retention import apply_rules, rules_of

    with _working(policy) as (config, engine), engine.begin() as connection:
        done = apply_rules(connection, config.weights_dir, config.policy, rules_of(config), dry_run=dry_run)
    table = Table()
    for column in ("version", "files", "why"):
        table.add_column(column)
    lines = {version: ("stay", "; ".join(why)) for version, why in done.kept.items()}
    lines |= dict.fromkeys(done.gone, ("would be deleted" if dry_run else "deleted", "nobody needs them"))
    for version, (what, why) in sorted(lines.items()):
        table.add_row(str(version), what, why)
    Console().print(table)


@app.command()
def upload(policy: PolicyOption = None) -> None:
    """Copy every version that is not yet at HINDSTREAM_LEARNER__UPLOAD_URL, as the learner does in the background."""
    from learner.upload import upload_missing

    with _working(policy) as (config, engine):
        url = _upload_url(config)
        left = upload_missing(config, engine, Event())
    if left:
        raise UserError(
            f"not at {url}: version {', '.join(map(str, left))}; the reason is above, and in the table weight_uploads"
        )
    print(f"every version with files here is at {url}")


@app.command()
def fetch(version: int, policy: PolicyOption = None) -> None:
    """Bring a version's files, and those of its base, back from their copy, compared with the manifest."""
    from learner.storage import Storage, StorageFault
    from learner.upload import fetch as fetch_version

    with _working(policy) as (config, engine), engine.begin() as connection:
        url = _upload_url(config)
        try:
            fetched = fetch_version(
                connection, Storage(url, config.upload_options), config.weights_dir, config.policy, version
            )
        except (StorageFault, OSError) as err:
            raise UserError(f"version {version} was not fetched: {err}") from None
    for one in fetched:
        print(f"version {one} is here again; `hindstream weights pin {one}` keeps it from the next prune")
    if not fetched:
        print(f"version {version} is here already")


@app.command()
def rebuild(
    version: int,
    from_base: Annotated[
        bool, typer.Option("--from-base", help="Fold the whole log from version 0, whatever states are saved.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="A new directory for the files; default: they are deleted.")] = None,
    policy: PolicyOption = None,
) -> None:
    """Make a version again from its parent and the micro-batch log, and compare. Exit code 1 where it differs.

    On a CPU every file must come out the same, byte for byte. On a GPU without --deterministic the weights may be off
    by 5 percent of the way that training has gone since version 0.
    """
    from learner.determinism import settle
    from learner.rebuild import BOUND
    from learner.rebuild import rebuild as rebuild_version

    with _working(policy) as (config, engine):
        settle(config)
        done = rebuild_version(config, engine, Event(), version, from_base=from_base, keep=keep, say=print)
    for name, same in sorted(done.files.items()):
        print(f"  {name}: {'the same' if same else 'DIFFERS'}")
    for line in done.elsewise:
        print(f"  note: {line}")
    if done.same:
        print(f"version {version}: every file came out the same")
    elif done.deviation is None:
        print(f"version {version}: differs, and its weights are no longer here to compare (`hindstream weights fetch`)")
    else:
        print(
            f"version {version}: off by {done.deviation:.3%} of the way from version 0 "
            f"({f'at most {BOUND:.0%} is' if done.accepted else 'that is not'} accepted here)"
        )
    raise typer.Exit(0 if done.accepted else 1)


@contextmanager
def _working(policy: str | None) -> Iterator[tuple[LearnerConfig, Engine]]:
    """The configuration and an engine; what goes wrong is told in a line."""
    from learner.database import make_engine
    from learner.errors import LearnerStopped

    logging.basicConfig(level="WARNING", format="%(message)s")
    settings = load_settings()
    config = learner_config(settings, resolve_endpoints(settings), policy)
    engine = make_engine(config.database_url, "hindstream-weights")
    try:
        yield config, engine
    except (LearnerStopped, LookupError) as err:
        raise UserError(str(err)) from None
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None
    finally:
        engine.dispose()


def _upload_url(config: LearnerConfig) -> str:
    if config.upload_url is None:
        raise UserError(
            "there is no place for copies: set HINDSTREAM_LEARNER__UPLOAD_URL, for one to s3://bucket/prefix"
        )
    return config.upload_url
