"""Rooms meet only in topics and tables: who imports whom, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"schemas", "producers", "processors", "learner", "migrations", "hindstream", "benchmarks", "tests"}
MAY_IMPORT = {
    "schemas": set[str](),
    "producers": {"schemas"},
    "processors": {"schemas"},
    "learner": {"schemas"},
    "migrations": {"schemas"},
}
MATH = (
    "advantages",
    "aggregation",
    "collate",
    "companions",
    "corrections",
    "critic",
    "distilling",
    "estimators",
    "importance",
    "logprobs",
    "losses",
    "measured",
    "measuring",
    "metrics",
    "objective",
    "optimizer",
    "own_teacher",
    "samples",
    "preparing",
    "ranks",
    "sharding",
    "together",
    "silence",
    "step",
    "step_options",
    "teachers",
    "terms",
)
TRANSPORT = {"kafka", "aiokafka", "faust", "sqlalchemy", "psycopg", "aiohttp", "schemas"}


def imported(path: Path) -> set[str]:
    """Top-level names that a module imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    strangers = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imported(path) & ROOMS - {room} - MAY_IMPORT[room]
    }
    assert strangers == set()


def test_the_learners_math_knows_nothing_of_kafka_or_sql() -> None:
    files = [
        path
        for part in MATH
        for path in [*(ROOT / "learner").glob(f"{part}.py"), *(ROOT / "learner" / part).rglob("*.py")]
    ]
    assert len(files) >= len(MATH)
    strangers = {f"{path.name} imports {name}" for path in files for name in imported(path) & TRANSPORT}
    assert strangers == set()


def test_only_settings_read_the_environment() -> None:
    readers = set()
    for room in [*MAY_IMPORT, "hindstream"]:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                reads = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
                if reads and isinstance(node.value, ast.Name) and node.value.id == "os":
                    readers.add(str(path.relative_to(ROOT)))
    assert readers <= {"hindstream/settings.py"}
