"""What people say of an answer becomes an event of its turn."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hindstream.cli.topics import ensure_topics
from schemas.events import FeedbackGiven
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import COMPLETION, gateway, plain, say, serving

pytestmark = pytest.mark.stack
CHAT = "/v1/chat/completions"
NOWHERE = "127.0.0.1:9"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


async def give(address: str, body: Any) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.post(f"{address}/v1/feedback", json=body) as response:
        return response.status, await response.json()


async def test_feedback_is_on_the_log_when_its_caller_hears_so(tmp_path: Path, broker: str) -> None:
    ensure_topics(broker, 8)
    session = f"fb-{secrets.token_hex(4)}"
    async with serving({CHAT: plain}) as upstream, gateway(tmp_path, upstream, broker) as address:
        _, _, headers = await say(address, BODY, {"X-Session-Id": session})
        turn = headers["X-Turn-Id"]
        told = [
            await give(address, {"turn_id": turn, "thumbs": "down", "author": "ann"}),
            await give(address, {"turn_id": turn, "thumbs": "down", "author": "ann"}),
            await give(address, {"answer_id": COMPLETION["id"], "score": 0.5, "given_at": "2026-05-01T12:00:00Z"}),
            await give(address, {"turn_id": turn, "correction": "Hello!", "id": "c1"}),
        ]
        # A turn of another gateway, or of long ago, is named with its session.
        told.append(await give(address, {"turn_id": "turn_old", "session_id": session, "reaction": "👍🏽"}))
    assert [(status, said["recorded"]) for status, said in told] == [(200, "true")] * 5
    assert all(said["session_id"] == session for _, said in told)
    events = await asyncio.to_thread(events_of, broker, session, 6)
    given = [event.data for event in events if isinstance(event.data, FeedbackGiven)]
    assert [one.feedback_id for one in given] == [said["feedback_id"] for _, said in told]
    assert given[0] == given[1]  # said twice is said once
    assert len({one.feedback_id for one in given}) == 4
    assert [(one.turn_id, one.thumbs, one.score, one.correction, one.author, one.given_at) for one in given[1:]] == [
        (turn, "down", None, None, "ann", None),
        (turn, None, 0.5, None, None, "2026-05-01T12:00:00Z"),
        (turn, None, None, "Hello!", None, None),
        ("turn_old", "up", None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"turn_id": "t", "session_id": "s"}, 400, "thumbs"),
        ({"thumbs": "up"}, 400, "turn_id"),
        ({"turn_id": "t", "answer_id": "a", "thumbs": "up"}, 400, "turn_id"),
        ({"turn_id": "t", "thumbs": "up"}, 400, "session_id"),
        ({"answer_id": "nobody", "thumbs": "up"}, 404, "answer_id"),
        ({"turn_id": "t", "session_id": "s", "thumbs": "sideways"}, 400, "thumbs"),
        ({"turn_id": "t", "session_id": "s", "score": 7}, 400, "score"),
        ({"turn_id": "t", "session_id": "s", "score": True}, 400, "score"),
        ({"turn_id": "t", "session_id": "s", "score": "0.8x"}, 400, "score"),
        ({"turn_id": "t", "session_id": "s", "reaction": "🤷"}, 400, "reaction"),
        ({"turn_id": "t", "session_id": "s", "correction": "  "}, 400, "correction"),
        ({"turn_id": "t", "session_id": "s", "thumbs": "up", "given_at": "yesterday"}, 400, "given_at"),
        ({"turn_id": "t", "session_id": "s", "thumbs": "up", "given_at": "2026-05-01"}, 400, "given_at"),
        ({"turn_id": "t", "session_id": "s", "thumbs": "up", "author": ""}, 400, "author"),
        ({"turn_id": "t", "session_id": "tenant/other/s", "thumbs": "up"}, 400, "session_id"),
        ({"turn_id": "t", "session_id": "s", "thumb": "up"}, 400, "thumb"),
    ],
)
async def test_what_says_nothing_clear_is_refused_by_name(
    tmp_path: Path, body: dict[str, Any], status: int, field: str
) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE) as address:
        answered, said = await give(address, body)
    assert (answered, said["error"]["param"]) == (status, field)
    assert not list((tmp_path / "spool").glob("*.jsonl"))


async def test_while_the_broker_is_away_it_waits_on_disk_and_a_full_disk_is_told(tmp_path: Path) -> None:
    body = {"turn_id": "t", "session_id": "s", "thumbs": "up"}
    async with gateway(tmp_path / "one", "http://127.0.0.1:9", NOWHERE, publish_timeout_s=0.5) as address:
        assert (await give(address, body))[1]["recorded"] == "spooled"
    more = {"publish_timeout_s": 0.5, "spool_max_bytes": 10}
    async with gateway(tmp_path / "two", "http://127.0.0.1:9", NOWHERE, **more) as address:
        status, said = await give(address, body)
    assert (status, said["error"]["type"]) == (503, "server_error")
