"""Real services for every test that asks: one broker, one Postgres and one model server for the whole session.

They live in a temporary home of their own, never in the developer's, and are stopped at the end whatever happened.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from xdist.remote import Producer

from hindstream.settings import PREFIX, Settings, VllmSettings
from hindstream.stack import model
from hindstream.stack.local import Endpoints, Stack
from tests.scheduling import OneModelServer

# The settings of whoever runs the tests are not those of the tests; and a torch of ours must not spin beside vLLM.
for _name in [name for name in os.environ if name.startswith(PREFIX)]:
    del os.environ[_name]
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

SHARED = Path(__file__).resolve().parents[2] / "shared"
# Enough for the tests' prompts, and two servers of it fit beside a learner.
MAX_MODEL_LEN = 1024


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneModelServer:
    """Called by xdist where tests run in several processes."""
    return OneModelServer(config, log)


class SessionStack:
    """A stack that tests start piece by piece, with its progress on the terminal past pytest's capturing."""

    def __init__(self, home: Path, settings: Settings, config: pytest.Config) -> None:
        self.stack = Stack(home, settings)
        self._capture = config.pluginmanager.getplugin("capturemanager")

    def up(self, services: Iterable[str]) -> Endpoints:
        """The addresses, with these services running."""
        with self._capture.global_and_fixture_disabled():
            print()
            return self.stack.up(services)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of the test's own, as pytest's. Under root it lies outside pytest's directory, which another session
    of pytest closes again: the account that Postgres then runs as must be able to pass."""
    if os.geteuid() != 0:
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        yield factory.mktemp(_short(request.node.name))
        return
    directory = Path(tempfile.mkdtemp(prefix=f"hindstream-{_short(request.node.name)}-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def stack_home() -> Iterator[Path]:
    """The home of the session's stack."""
    home = Path(tempfile.mkdtemp(prefix="hindstream-test-"))
    home.chmod(0o711)  # as for tmp_path
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def session_stack(stack_home: Path, request: pytest.FixtureRequest) -> Iterator[SessionStack]:
    """The session's stack; nothing runs until a fixture below asks."""
    settings = Settings(home=stack_home, vllm=VllmSettings(max_model_len=MAX_MODEL_LEN))
    session = SessionStack(stack_home, settings, request.config)
    yield session
    session.stack.remove()


@pytest.fixture(scope="session")
def broker(session_stack: SessionStack) -> str:
    """A broker's address, host:port. Shared: name your topics and groups apart."""
    found = session_stack.up(("broker",)).bootstrap_servers
    assert found is not None
    return found


@pytest.fixture(scope="session")
def postgres(session_stack: SessionStack) -> str:
    """The superuser's postgresql:// address of the session's Postgres. Shared: tests take `database_url`."""
    found = session_stack.up(("postgres",)).database_url
    assert found is not None
    return found


@pytest.fixture
def database_url(postgres: str) -> Iterator[str]:
    """postgresql+psycopg:// address of an empty database of the test's own."""
    yield from _database(postgres, template=None)


@pytest.fixture(scope="session")
def migrated_template(postgres: str) -> str:
    """The name of a database with every migration, to copy from: a copy takes a tenth of the time."""
    from migrations import upgrade

    name = "hindstream_template"
    _administer(postgres, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    upgrade(_address(postgres, name))
    return name


@pytest.fixture
def migrated_database_url(postgres: str, migrated_template: str) -> Iterator[str]:
    """postgresql+psycopg:// address of a database of the test's own with every table, and no rows."""
    yield from _database(postgres, template=migrated_template)


@pytest.fixture(scope="session")
def vllm_server(session_stack: SessionStack) -> str:
    """Address (without /v1) of the session's vLLM server: bfloat16, model name "policy". Who loads weights into it
    puts the base model back."""
    found = session_stack.up(("vllm",)).policy_url
    assert found is not None
    return found


@pytest.fixture(scope="session")
def vllm_server_f32(stack_home: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a second vLLM server, float32, for log-probs that are compared to 1e-4. Never load weights into it."""
    home = stack_home / "float32"
    home.mkdir()
    settings = Settings(home=home, vllm=VllmSettings(dtype="float32", max_model_len=MAX_MODEL_LEN))
    session = SessionStack(home, settings, request.config)
    try:
        found = session.up(("vllm",)).policy_url
        assert found is not None
        yield found
    finally:
        session.stack.remove()


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """SmolLM2-135M-Instruct as a HuggingFace directory (bfloat16): version 0, the model that the servers serve."""
    return model.ensure(None, Settings().cache, print)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The directory of real conversations beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"the data of real conversations are not here ({SHARED})")
    return SHARED


def _short(name: str) -> str:
    return re.sub(r"\W", "_", name)[:30]


def _database(postgres: str, template: str | None) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
    _administer(postgres, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + copied)
    try:
        yield _address(postgres, name)
    finally:
        # FORCE: a test that failed may have left connections open.
        _administer(postgres, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _administer(postgres: str, statement: sql.Composed) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(statement)


def _address(postgres: str, name: str) -> str:
    return urlunsplit(urlsplit(postgres)._replace(scheme="postgresql+psycopg", path=f"/{name}"))
