"""Who is let in, whose sessions are whose, and what happens while the keys cannot be read."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from sqlalchemy import create_engine, select
from typer.testing import CliRunner

from hindstream.cli.keys import app as keys_app
from hindstream.cli.keys import expires_at
from hindstream.cli.topics import ensure_topics
from hindstream.errors import UserError
from producers.gateway.access import ring as ring_module
from producers.gateway.access import store
from producers.gateway.access.callers import Caller, public
from producers.gateway.access.guard import NoKeys, is_loopback
from producers.gateway.access.key_form import digest_of, new_key, tenant_of
from producers.gateway.access.ring import Grant, KeyList, KeyRing, KeysAway
from schemas.events import TurnRecorded
from schemas.tables import gateway_keys
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, plain, say, serving

BODY = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"
NOWHERE = "127.0.0.1:9"
NO_DATABASE = "postgresql+psycopg://nobody:secretpassword@127.0.0.1:9/none"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def made(url: str, tenant: str, **more: Any) -> tuple[str, str]:
    engine = create_engine(url)
    with engine.begin() as connection:
        found = store.create_key(connection, tenant, None, more.pop("expires_at", None), **more)
    engine.dispose()
    return found


async def until(true: Callable[[], Any], within_s: float = 60.0) -> None:
    for _ in range(int(within_s / 0.1)):
        if await true():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it never came")


async def got(address: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{address}{path}", headers=headers) as response:
        return response.status, await response.text()


@pytest.mark.stack
async def test_a_key_opens_until_it_is_revoked_and_the_first_one_ends_open_house(
    tmp_path: Path, migrated_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.gateway.access.guard._REFRESH_S", 0.1)
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5, database_url=migrated_database_url) as address,
    ):
        assert (await say(address, BODY))[0] == 200, "no key was ever made, and only this machine can ask"
        key_id, key = made(migrated_database_url, "acme")

        async def closed() -> bool:
            return (await say(address, BODY))[0] == 401

        await until(closed)
        status, said, headers = await say(address, BODY, bearer(key + "x"))
        assert (status, said["error"]["code"], headers["WWW-Authenticate"]) == (401, "invalid_api_key", "Bearer")
        assert (await say(address, BODY, bearer(key)))[0] == 200
        assert (await say(address, BODY, {"x-api-key": key}))[0] == 200
        for path in ("/healthz", "/readyz"):
            assert (await got(address, path))[0] != 401
        for path in ("/metrics", "/v1/models", "/v1/turns/x", "/v1/responses/x", "/nothing"):
            assert (await got(address, path))[0] == 401
            assert (await got(address, path, bearer(key)))[0] != 401
        engine = create_engine(migrated_database_url)
        with engine.begin() as connection:
            assert store.revoke_key(connection, key_id)

        async def refused() -> bool:
            return (await say(address, BODY, bearer(key)))[0] == 401

        await until(refused)
        assert (await say(address, BODY))[0] == 401, "revoking the last key opens nothing"
        with engine.connect() as connection:
            kept = connection.execute(select(gateway_keys)).mappings().one()
        engine.dispose()
        assert key not in str(dict(kept))
        assert kept["digest"] == digest_of(key)
    copy = (tmp_path / "gateway-keys.json").read_text()
    assert json.loads(copy) == {"exist": True, "keys": []}


@pytest.mark.stack
async def test_real_clients_hear_of_a_wrong_key_in_their_own_words(tmp_path: Path, migrated_database_url: str) -> None:
    _, key = made(migrated_database_url, "acme")
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5, database_url=migrated_database_url) as address,
    ):
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi"}])
        for given, good in (("wrong", False), (key, True)):
            async with anthropic.AsyncAnthropic(base_url=address, api_key=given, max_retries=0) as other:
                asked = other.messages.create(
                    model="policy", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
                )
                if good:
                    assert (await asked).content[0].type == "text"
                else:
                    with pytest.raises(anthropic.AuthenticationError):
                        await asked


@pytest.mark.stack
async def test_tenants_never_meet(tmp_path: Path, migrated_database_url: str, broker: str) -> None:
    ensure_topics(broker, 8)
    _, ours = made(migrated_database_url, "acme")
    _, theirs = made(migrated_database_url, "other")
    heard: list[str] = []

    async def upstream_chat(request: Any) -> Any:
        heard.append(request.headers.get("Authorization", "") + request.headers.get("x-api-key", ""))
        return await plain(request)

    name = new_key()[3:20]
    async with (
        serving({CHAT: upstream_chat}) as upstream,
        gateway(tmp_path, upstream, broker, database_url=migrated_database_url, api_key="sk-upstream") as address,
    ):
        turns = {}
        for key in (ours, theirs):
            _, _, headers = await say(address, BODY, {**bearer(key), "X-Session-Id": name})
            assert headers["X-Session-Id"] == name, "the caller hears his own name"
            turns[key] = headers["X-Turn-Id"]
        assert turns[ours] != turns[theirs]
        assert (await got(address, f"/v1/turns/{turns[ours]}", bearer(ours)))[0] == 200
        assert (await got(address, f"/v1/turns/{turns[ours]}", bearer(theirs)))[0] == 404
        async with aiohttp.ClientSession() as http:
            asked = {"model": "policy", "input": "Hi"}
            async with http.post(f"{address}/v1/responses", json=asked, headers=bearer(ours)) as response:
                answer = await response.json()
            later = {**asked, "previous_response_id": answer["id"]}
            for key, status in ((ours, 200), (theirs, 400)):
                async with http.post(f"{address}/v1/responses", json=later, headers=bearer(key)) as response:
                    assert response.status == status
        assert (await got(address, f"/v1/responses/{answer['id']}", bearer(ours)))[0] == 200
        assert (await got(address, f"/v1/responses/{answer['id']}", bearer(theirs)))[0] == 404
        stolen = {**bearer(theirs), "X-Session-Id": f"tenant/acme/{name}"}
        _, _, headers = await say(address, BODY, stolen)
        assert headers["X-Turn-Id"] not in turns.values()
    assert set(heard) == {"Bearer sk-upstream"}, "a caller's key goes nowhere"
    for tenant, key in (("acme", ours), ("other", theirs)):
        (event,) = events_of(broker, f"tenant/{tenant}/{name}", 1)
        assert isinstance(event.data, TurnRecorded)
        assert (event.data.turn_id, event.data.tenant) == (turns[key], tenant)


@pytest.mark.stack
async def test_recording_is_off_where_request_or_tenant_say_so(
    tmp_path: Path, migrated_database_url: str, broker: str
) -> None:
    ensure_topics(broker, 8)
    _, recorded = made(migrated_database_url, "acme")
    _, silent = made(migrated_database_url, "silent", record=False)
    name = new_key()[3:20]
    off = {"X-No-Record": "true"}
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, broker, database_url=migrated_database_url) as address,
    ):
        for headers in ({**bearer(recorded), **off}, bearer(silent), {**bearer(silent), "X-No-Record": "false"}):
            status, said, got_back = await say(address, BODY, {**headers, "X-Session-Id": name})
            assert (status, got_back["X-Hindstream-Recorded"]) == (200, "off")
            assert said["choices"][0]["message"]["content"] == "Hello."
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{address}/v1/completions", json={"prompt": "a"}, headers={**bearer(recorded), **off}) as answer,
        ):
            assert answer.headers.get("X-Hindstream-Recorded") in (None, "off")
        status, said, _ = await say(address, BODY, {**bearer(recorded), "X-No-Record": "yes please"})
        assert (status, said["error"]["param"]) == (400, "X-No-Record"), "a wish that is not understood is not ignored"
        await say(address, BODY, {**bearer(recorded), "X-Session-Id": name, "X-Turn-Type": "side"})
        _, figures = await got(address, "/metrics", bearer(recorded))
    assert re.search(r'hindstream_gateway_recorded\{state="off"\} [34]\.0', figures)
    (event,) = events_of(broker, f"tenant/acme/{name}", 1)
    assert isinstance(event.data, TurnRecorded)
    assert event.data.kind == "side", "the one that was to be recorded, and none before it"


async def test_others_than_this_machine_need_keys(tmp_path: Path) -> None:
    with pytest.raises(NoKeys, match="hindstream keys create"):
        async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE, host="0.0.0.0"):
            pass
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path / "open", upstream, NOWHERE, host="0.0.0.0", access="open", publish_timeout_s=0.5) as address,
    ):
        assert (await say(address, BODY))[0] == 200
    async with gateway(tmp_path / "shut", upstream, NOWHERE, access="keys") as address:
        assert (await say(address, BODY))[0] == 401


async def test_nobody_gives_a_session_the_name_of_a_tenants(tmp_path: Path) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE) as address:
        status, said, _ = await say(address, BODY, {"X-Session-Id": "tenant/acme/s"})
    assert (status, said["error"]["param"]) == (400, "X-Session-Id")


async def test_while_the_database_is_away_known_keys_stay_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    key = new_key()
    grant = {"digest": digest_of(key).hex(), "tenant": "acme", "recorded": True, "expires_at": None}
    (tmp_path / "gateway-keys.json").write_text(json.dumps({"exist": True, "keys": [grant]}))
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5, database_url=NO_DATABASE) as address,
    ):
        assert (await say(address, BODY, bearer(key)))[0] == 200
        assert (await say(address, BODY, bearer(new_key())))[0] == 401


@pytest.mark.parametrize(
    "copy", [None, "", "{", "[]", '{"exist": true}', '{"exist": true, "keys": [{"digest": "00"}]}']
)
async def test_who_knows_no_list_lets_nobody_in(
    tmp_path: Path, copy: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if copy is not None:
        (tmp_path / "gateway-keys.json").write_text(copy)
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE, database_url=NO_DATABASE) as address:
        status, _, headers = await say(address, BODY, bearer(new_key()))
        assert (status, headers["Retry-After"]) == (503, "2")
        assert (await got(address, "/healthz"))[0] == 200
    assert "nobody is let in" in caplog.text
    assert "secretpassword" not in caplog.text


def test_a_ring_forgets_nothing_while_its_source_is_away_and_keeps_a_copy(tmp_path: Path) -> None:
    key, now = new_key(), [100.0]
    grant = Grant(digest=digest_of(key).hex(), tenant="t", recorded=False, expires_at=200.0)
    answers: list[KeyList | None] = [KeyList((grant,), True), None, KeyList((), True)]

    def source() -> KeyList:
        answer = answers.pop(0)
        if answer is None:
            raise KeysAway("away")
        return answer

    copy = tmp_path / "made" / "keys.json"
    ring = KeyRing(source, copy, lambda: now[0])
    assert not ring.known
    ring.refresh()
    assert ring.caller(key) == Caller("t", recorded=False)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert key not in copy.read_text()
    ring.refresh()
    assert ring.caller(key) == Caller("t", recorded=False)
    now[0] = 200.0
    assert ring.caller(key) is None, "from that moment on"
    now[0] = 100.0
    ring.refresh()
    assert ring.caller(key) is None
    assert ring.exist
    assert [path.name for path in copy.parent.iterdir()] == ["keys.json"]
    assert ring_module.digest_of(key) == digest_of(key)


@pytest.mark.stack
def test_the_commands_make_list_and_revoke(migrated_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", migrated_database_url.replace("+psycopg", ""))
    run = CliRunner().invoke
    first = run(keys_app, ["create", "--tenant", "acme", "--name", "agent [red]", "--expires", "30d"])
    key = first.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"hs_[\w-]{43}", key)
    listed = run(keys_app, ["list"]).stdout
    assert "acme" in listed
    assert "agent [red]" in listed
    assert "valid" in listed
    assert key not in listed
    engine = create_engine(migrated_database_url)
    with engine.connect() as connection:
        ((key_id, *_),) = store.list_keys(connection)
    assert run(keys_app, ["revoke", key_id]).exit_code == 0
    assert run(keys_app, ["revoke", key_id]).exit_code == 0, "again is the same"
    assert "revoked" in run(keys_app, ["list"]).stdout
    assert run(keys_app, ["tenant", "acme", "--no-record"]).exit_code == 0
    assert store.read_keys(engine) == KeyList((), True)
    run(keys_app, ["create", "--tenant", "acme"])
    assert [grant.recorded for grant in store.read_keys(engine).grants] == [False], "a new key changes no tenant"
    engine.dispose()
    for wrong in (["revoke", "none"], ["create", "--tenant", "A/b"], ["tenant", "nobody", "--record"]):
        assert isinstance(run(keys_app, wrong).exception, UserError)


def test_when_a_key_ends() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert expires_at("90m", now) == now + timedelta(minutes=90)
    assert expires_at("30d", now) == now + timedelta(days=30)
    assert expires_at("9999999d", now) == now + timedelta(days=36_500)
    assert expires_at("2027-01-31T00:00Z", now) == datetime(2027, 1, 31, tzinfo=UTC)
    for wrong in ("", "soon", "0d", "2025-01-01T00:00Z", "2027-01-31", "-1d"):
        with pytest.raises(UserError, match="--expires"):
            expires_at(wrong, now)


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", "a" * 64, "a b", "ä", "a\n"])
def test_what_is_no_tenant(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a tenant"):
        tenant_of(name)


def test_sessions_carry_their_tenant() -> None:
    acme = Caller("acme")
    assert acme.scoped("tenant/other/s") == "tenant/acme/tenant/other/s"
    assert public(acme.scoped("a/b/c")) == "a/b/c"
    assert public("plain/name") == "plain/name"
    assert acme.owns("tenant/acme/s")
    assert not acme.owns("tenant/acme2/s")
    assert not acme.owns("s")
    assert Caller().owns("s")
    assert not Caller().owns("tenant/acme/s")


@pytest.mark.parametrize(
    ("host", "mine"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("", False), ("10.0.0.1", False), ("example.org", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_which_addresses_only_this_machine_reaches(host: str, mine: bool) -> None:
    assert is_loopback(host) is mine
