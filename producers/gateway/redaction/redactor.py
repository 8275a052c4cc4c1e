"""Events without what may not be recorded.

It runs where events leave the process, before log, spool and claim check. Ids were made before, of the text as it was,
so turns and their next states find each other as ever. Of a turn whose text changed no token ids are kept: they would
say it still. Whatever goes wrong here, the event is not recorded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from producers.gateway.access.callers import PREFIX, public
from producers.gateway.redaction.rules import Rules, TooSlow
from schemas.depth import nested_deeply
from schemas.envelope import Event
from schemas.events import EventData, SessionClosed, Tokens, TurnRecorded

_AS_IT_IS = frozenset(
    {
        *("turn_id", "parent_turn_id", "next_state_id", "next_state_ids", "feedback_id", "group_id", "session_id"),
        *("kind", "ordinal", "finish_reason", "policy", "tokens", "tenant", "user_digest", "redacted", "sanitised"),
        *("started_at", "ended_at", "observed_at", "given_at", "score", "thumbs", "verdict", "exit_code"),
    }
)
"""Fields that hold no caller's text: hashes, numbers, clocks and words of closed lists. All others are searched, those
of later versions too. A session id is treated by itself."""

_OURS = re.compile(r"derived-[0-9a-f]{32}")
"""A session id that the gateway made; searching a hash finds chance."""

_PICTURE = re.compile(r"data:[\w.+-]{1,64}/[\w.+-]{1,64};base64,[A-Za-z0-9+/=\s]*")
"""No rule reads what is in it."""

_LEAST_NUMBER = 10_000_000
"""Shorter numbers are none of those that detectors know."""


class RedactionFailed(RuntimeError):
    """The events of a request are not to be recorded: how it failed, without a word of theirs."""


class Redactor:
    """Applies the rules to events. Thread-safe."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def events(self, events: Sequence[Event]) -> list[Event]:
        """The events of one request without what the rules find.

        Raises:
            RedactionFailed: that is not certain.
        """
        try:
            one = _One(self._rules, self._rules.deadline())
            return [one.event(event) for event in events]
        except TooSlow:
            raise RedactionFailed("the redaction rules took too long") from None
        except Exception as err:  # whatever it is: its words may be those that are to be hidden
            raise RedactionFailed(f"a redaction rule failed with {type(err).__name__}") from None


class _One:
    """The events of one request, within their deadline."""

    def __init__(self, rules: Rules, deadline: float) -> None:
        self._rules = rules
        self._deadline = deadline

    def event(self, event: Event) -> Event:
        data = event.data
        # Nothing is searched for in token ids, which are most of a turn.
        bare = msgspec.structs.replace(data, tokens=Tokens()) if isinstance(data, TurnRecorded) else data
        plain = msgspec.to_builtins(bare)
        clean = {name: value if name in _AS_IT_IS else self._any(value) for name, value in plain.items()}
        unknown = self._any(event.unknown)
        session_id = self._session(data.session_id)
        changed = clean != plain or unknown != event.unknown
        if not changed and session_id == data.session_id:
            return event
        new: EventData = msgspec.convert({**clean, "session_id": session_id}, type(data))
        if isinstance(new, TurnRecorded) and isinstance(data, TurnRecorded) and not changed:
            new = msgspec.structs.replace(new, tokens=data.tokens)
        if changed and not isinstance(new, SessionClosed):
            new = msgspec.structs.replace(new, redacted=True)
        subject = session_id if event.subject == data.session_id else event.subject
        return replace(event, data=new, unknown=unknown, subject=subject)

    def _session(self, session_id: str) -> str:
        """The same for the same session, so that its events stay together; the name itself where it says nothing."""
        name = public(session_id)
        if _OURS.fullmatch(name) or self._rules.text(name, self._deadline) == name:
            return session_id
        hidden = "redacted-" + hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return session_id[: len(session_id) - len(name)] + hidden if session_id.startswith(PREFIX) else hidden

    def _any(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(name) if isinstance(name, str) else name: self._any(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._any(one) for one in value]
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= _LEAST_NUMBER:
            said = str(value)
            clean = self._rules.text(said, self._deadline)
            return value if clean == said else clean
        return value

    def _text(self, text: str) -> str:
        if _PICTURE.fullmatch(text):
            return text
        clean = self._rules.text(text, self._deadline)
        return self._as_json(clean) if "\\" in clean else clean

    def _as_json(self, text: str) -> str:
        """JSON in a string (arguments of tools, most of all) says with escapes what no rule would see."""
        if not text.lstrip().startswith(("{", "[", '"')):
            return text
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if nested_deeply(plain):
            return text
        clean = self._any(plain)
        return text if clean == plain else json.dumps(clean, ensure_ascii=False)
