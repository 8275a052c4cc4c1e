"""What of an OpenClaw message of role user a person wrote.

OpenClaw speaks to its policy in that role too: timers, heartbeats, notes on finished commands; and it puts what it
knows about a chat message before the message.
"""

from __future__ import annotations

import re
from typing import Any

from producers.importers.content import spoken

_TAGS = ("system-reminder", "relevant-memories", "relevant_memories", "media-note")
_NOTES = (
    "System: [",
    "[cron:",
    "[Subagent Context]",
    "[Subagent Task]",
    "Read HEARTBEAT.md",
    "A new session was started via",
    "A scheduled reminder has been triggered",
    "An async command you ran earlier has completed",
    "Pre-compaction memory flush",
)
"""How texts begin that no person wrote."""
_METADATA = re.compile(r"\s*[^\n]*\(untrusted[^\n)]*\)[^\n]*:\s*\n```(?:json)?\n.*?\n```", re.DOTALL)
_STAMP = re.compile(r"\s*\[(?:[A-Z][\w-]* )?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[^\]\n]*\d{2}:\d{2}[^\]\n]*\]\s*")
_MESSAGE_ID = re.compile(r"\s*\[message_id:[^\]\n]*\]\s*\Z")


def said_by_person(message: dict[str, Any], text: str) -> str:
    """The text without what OpenClaw put around it; empty where a machine wrote all of it."""
    provenance = message.get("provenance")
    kind = provenance.get("kind") if isinstance(provenance, dict) else None
    if isinstance(kind, str) and kind != "external_user":
        return ""
    text = spoken(text, _TAGS)
    while (found := _METADATA.match(text)) is not None:
        text = text[found.end() :]
    text = _MESSAGE_ID.sub("", _STAMP.sub("", text, count=1) if _STAMP.match(text) else text).strip()
    return "" if text.startswith(_NOTES) else text
