"""docs/tables.md, made from the tables' own comments: `python -m schemas.table_docs` writes it again."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import CheckConstraint, Table

from schemas.states import DROP_REASONS
from schemas.tables import metadata

FILE = Path(__file__).parents[1] / "docs" / "tables.md"

_ROOMS = {
    "Facts": ("events", "sessions", "turns", "next_states", "turn_completions", "feedback"),
    "Work": ("runs", "replays", "samples", "evaluations", "open_questions"),
    "Results": ("votes", "rewards", "hints", "teacher_scores", "model_answers"),
    "Learning": (
        "micro_batches",
        "training_steps",
        "metric_definitions",
        "weight_versions",
        "weight_loads",
        "weight_pins",
        "weight_uploads",
    ),
    "Access": ("tenants", "gateway_keys"),
    "Delivery": ("outbox", "dead_letters"),
}


def render() -> str:
    """The page as Markdown."""
    parts = [
        "# The tables",
        "Facts are never changed by anything derived; every derived row names its run. NULL is never zero: what "
        "failed or abstained is a status. The same words are comments in the database (`\\d+ turns` in psql). The "
        "views `ledger`, `drops`, `conversations`, `turn_signals`, `lineage` and `step_metrics` answer the usual "
        'questions; ask with `hindstream sql "SELECT * FROM ledger"`.',
        "This page is made from `schemas/tables/` by `python -m schemas.table_docs`; a test keeps it current.",
    ]
    for room, names in _ROOMS.items():
        parts.append(f"## {room}")
        parts += [_table(metadata.tables[name]) for name in names]
    parts.append("## Why a turn is not trained\n\n`samples.drop_reason` is one of a closed list:\n")
    parts.append("\n".join(f"- `{reason}`: {words}." for reason, words in DROP_REASONS.items()))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [f"### `{table.name}`", "", table.comment or "", "", "| column | type | | meaning |", "|---|---|---|---|"]
    for column in table.columns:
        marks = ["key"] if column.primary_key else []
        if not column.nullable and not column.primary_key:
            marks.append("not null")
        marks += [f"→ {key.target_fullname}" for key in column.foreign_keys]
        words = (column.comment or "").replace("|", "\\|")
        lines.append(f"| `{column.name}` | {str(column.type).lower()} | {', '.join(marks)} | {words} |")
    checks = sorted(
        str(constraint.sqltext)
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint) and "drop_reason IN" not in str(constraint.sqltext)
    )
    if checks:
        lines += ["", "Checked: " + "; ".join(f"`{check}`" for check in checks) + "."]
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(render())
