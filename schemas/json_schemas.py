"""JSON Schemas of every event and message version, committed under `schemas/json/` for readers in other languages.

`python -m schemas.json_schemas` writes them again; a test fails while they are not current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from schemas.events import EVENT_TYPES
from schemas.messages import MESSAGE_TYPES

DIRECTORY = Path(__file__).parent / "json"


def json_schema(event_type: str) -> dict[str, Any]:
    """The JSON Schema of the data of `event_type`. Unknown fields are allowed: a reader must keep them.

    Raises:
        KeyError: no such type.
    """
    struct = {**EVENT_TYPES, **MESSAGE_TYPES}[event_type]
    schema = msgspec.json.schema(struct)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": event_type, **schema}


def render(event_type: str) -> str:
    """The committed text of one schema."""
    return json.dumps(json_schema(event_type), indent=2, sort_keys=True) + "\n"


def file_of(event_type: str) -> Path:
    """Where the schema of `event_type` is committed."""
    return DIRECTORY / f"{event_type}.json"


def main() -> None:
    """Write every schema."""
    for event_type in [*EVENT_TYPES, *MESSAGE_TYPES]:
        file_of(event_type).write_text(render(event_type))


if __name__ == "__main__":
    main()
