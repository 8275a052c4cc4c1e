"""A broker that hangs, and one that refuses: turns are kept, told of, and nothing stays stuck behind them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from hindstream.cli.topics import ensure_topics
from schemas.topics import AGENT_EVENTS
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, health, plain, say, serving

pytestmark = pytest.mark.stack
CHAT = "/v1/chat/completions"
NOWHERE = "127.0.0.1:9"
LIMIT = 6000
"""Bytes of the largest message that the topic takes for a while."""


def body(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


@contextmanager
def frozen(session_stack: Any) -> Iterator[None]:
    """The broker's process stands still: connections stay, nothing is answered."""
    process = session_stack.stack.known()["broker"].process.pid
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.fixture
def small_messages(topics: str) -> Iterator[str]:
    """The broker, whose topic takes only small messages for a while."""
    admin = KafkaAdminClient(bootstrap_servers=topics)

    def limit(size: int) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, AGENT_EVENTS, {"max.message.bytes": str(size)})
        admin.alter_configs([resource])

    limit(LIMIT)
    yield topics
    limit(2 << 20)
    admin.close()


async def test_a_broker_that_hung_is_used_again_and_nothing_is_missing(
    tmp_path: Path, topics: str, session_stack: Any
) -> None:
    name = session()
    headers = {"X-Session-Id": name}
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, topics, publish_timeout_s=2.0) as address,
    ):
        told = [await say(address, body("before"), headers)]
        with frozen(session_stack):
            told += await asyncio.gather(*(say(address, body(f"meanwhile {n}"), headers) for n in range(4)))
            told.append(await say(address, body("later"), headers))
            # Longer than the publisher's timeout: a batch that was sent has run out of time.
            await asyncio.sleep(4)
            assert (await health(address))["broker"] == "away"
        async with asyncio.timeout(30):
            while (await health(address))["spool_bytes"]:
                await asyncio.sleep(0.2)
        told.append(await say(address, body("after"), headers))
    recorded = [found[2]["X-Hindstream-Recorded"] for found in told]
    assert recorded == ["true", *["spooled"] * 5, "true"]
    # What was sent while it hung may be there twice; its id makes it one.
    on_log = {event.id for event in await asyncio.to_thread(events_of, topics, name, len(told))}
    assert on_log == {found[2]["X-Turn-Id"] for found in told}


async def test_a_turn_that_the_broker_refuses_is_told_and_holds_up_no_other(
    tmp_path: Path, small_messages: str
) -> None:
    name = session()
    headers = {"X-Session-Id": name}
    async with serving({CHAT: plain}) as upstream, gateway(tmp_path, upstream, small_messages) as address:
        told = [await say(address, body(text), headers) for text in ("one", "x" * LIMIT, "two")]
        counts = await health(address)
    assert [found[2]["X-Hindstream-Recorded"] for found in told] == ["true", "false", "true"]
    assert (counts["broker"], counts["refused_by_broker"], counts["spool_bytes"]) == ("ok", 1, 0)
    assert (tmp_path / "spool" / "refused").stat().st_size > LIMIT


async def test_a_spooled_turn_that_the_broker_refuses_is_set_aside(tmp_path: Path, small_messages: str) -> None:
    name = session()
    headers = {"X-Session-Id": name}
    async with serving({CHAT: plain}) as upstream:
        async with gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5) as address:
            told = [await say(address, body(text), headers) for text in ("one", "x" * LIMIT, "two")]
        async with gateway(tmp_path, upstream, small_messages) as address, asyncio.timeout(30):
            while (counts := await health(address))["spool_bytes"]:
                await asyncio.sleep(0.1)
    assert counts["refused_by_broker"] == 1
    ids = [found[2]["X-Turn-Id"] for found in told]
    on_log = {event.id for event in await asyncio.to_thread(events_of, small_messages, name, 2)}
    assert on_log == {ids[0], ids[2]}


async def test_an_address_that_is_none_sends_turns_to_the_spool(tmp_path: Path) -> None:
    async with serving({CHAT: plain}) as upstream, gateway(tmp_path, upstream, "kafka:port") as address:
        _, _, headers = await say(address, body("Hi"))
    assert headers["X-Hindstream-Recorded"] == "spooled"
