"""`hindstream erase`: remove what was said in a session, or by a user, and show which weights had seen it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from kafka.errors import KafkaError
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from hindstream.cli.gateway_security import user_secret
from hindstream.endpoints import Resolved, resolve_endpoints
from hindstream.erasing.archives import Erased, files_with, rewrite
from hindstream.erasing.finding import Found, find, sessions_of_user, weights, without_state
from hindstream.erasing.log_kept import retention_of
from hindstream.erasing.shown import Report, show
from hindstream.erasing.steps import Eraser
from hindstream.errors import UserError
from hindstream.export.reading import ArchiveReader
from hindstream.settings import Settings, load_settings
from processors.erasing.seen import InTraining, SeenBy
from schemas.claim_check import DirectoryBlobStore
from schemas.database import in_words, make_engine
from schemas.publish import AckedPublisher, PublishFailed
from schemas.topics import AGENT_EVENTS, DEAD_LETTERS, SIGNALS

_CLIENT = "hindstream-erase"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    sessions: list[str]
    user: str | None
    tenant: str | None
    archives: list[Path]
    dry_run: bool
    yes: bool
    as_json: bool


def erase(
    session: Annotated[list[str] | None, typer.Option("--session", help="This session; may be given again.")] = None,
    user: Annotated[str | None, typer.Option(help="Every session in which a request named this `user`.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose user that is, or whose session.")] = None,
    archive: Annotated[
        list[Path] | None,
        typer.Option("--archive", metavar="DIR", help="Take them out of this archive too; may be given again."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Remove text and tokens for good; ids, counts and lineage stay. Killed in the middle, run it again."""
    if bool(session) == (user is not None):
        raise UserError("what is to be erased? Give --session or --user, one of the two")
    if as_json and not (yes or dry_run):
        raise UserError("--json asks nobody: add --yes to erase, or --dry-run to look")
    asked = Asked(
        sessions=[name if tenant is None else f"tenant/{tenant}/{name}" for name in session or []],
        user=user,
        tenant=tenant,
        archives=archive or [],
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    settings = load_settings()
    try:
        with ExitStack() as stack:
            _erase(asked, settings, resolve_endpoints(settings), stack)
    except DBAPIError as err:
        raise UserError(
            f"the database failed: {in_words(err)}; what is not told as erased may not be, so run it again"
        ) from None
    except (PublishFailed, KafkaError) as err:
        raise UserError(
            f"the broker does not answer ({err}); what is not told as erased is not, run it again"
        ) from None
    except OSError as err:
        raise UserError(f"{err.filename}: {err.strerror}; run it again once that is mended") from None


def _erase(asked: Asked, settings: Settings, endpoints: Resolved, stack: ExitStack) -> None:
    engine = make_engine(endpoints.database_url, pool_size=1, application_name=_CLIENT)
    stack.callback(engine.dispose)
    archives = [ArchiveReader(path) for path in asked.archives]
    report = _look(asked, settings, endpoints, engine, archives)
    if not report.sessions:
        raise UserError(
            f"no turn names the user {asked.user!r}{_of(asked.tenant)}. Digests of users are made with "
            "HINDSTREAM_GATEWAY__USER_SECRET, which must be the gateway's; what was erased before is not found again"
        )
    if not asked.dry_run:
        if not asked.yes:
            show(report)
            typer.confirm("Erase all this for good?", abort=True)
        publisher = stack.enter_context(AckedPublisher(endpoints.bootstrap_servers, client_id=_CLIENT))
        eraser = Eraser(engine=engine, publisher=publisher, blobs=DirectoryBlobStore(settings.blobs_dir))
        for found in report.sessions:
            report.erased[found.session_id] = eraser.erase(found)
            if not asked.as_json:
                print(f"erased session {found.session_id}")
        for reader in archives:
            report.archives[str(reader.root)] = rewrite(reader, _erased(report.sessions, engine))
        report.seen, report.in_training = _weights(report.sessions, engine)
    if asked.as_json:
        print(json.dumps(report.as_json(), default=_plain, ensure_ascii=False))
    else:
        show(report, done=not asked.dry_run)


def _look(
    asked: Asked, settings: Settings, endpoints: Resolved, engine: Engine, archives: list[ArchiveReader]
) -> Report:
    with engine.connect() as connection:
        names = asked.sessions
        if asked.user is not None:
            names = sessions_of_user(connection, asked.user, tenant=asked.tenant, secret=user_secret(settings))
        sessions = [find(connection, name) for name in dict.fromkeys(names)]
    seen, training = _weights(sessions, engine)
    return Report(
        sessions=sessions,
        seen=seen,
        in_training=training,
        lost=without_state(seen, settings.weights_dir),
        retention=retention_of(endpoints.bootstrap_servers, [AGENT_EVENTS, SIGNALS, DEAD_LETTERS]),
        archives={str(one.root): files_with(one, _erased(sessions, engine)) for one in archives},
    )


def _weights(sessions: list[Found], engine: Engine) -> tuple[list[SeenBy], list[InTraining]]:
    with engine.connect() as connection:
        return weights(connection, [found.session_id for found in sessions])


def _erased(sessions: list[Found], engine: Engine) -> Erased:
    names = [found.session_id for found in sessions]
    with engine.connect() as connection:
        turns = connection.exec_driver_sql(
            "SELECT turn_id FROM turns WHERE session_id = ANY(%(names)s)", {"names": names}
        ).scalars()
        return Erased(frozenset(names), set(turns))


def _of(tenant: str | None) -> str:
    return "" if tenant is None else f" of tenant {tenant!r}"


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
