"""What may not be recorded is replaced before it leaves the process, or nothing is recorded."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from hindstream.cli.topics import ensure_topics
from processors.trainable import untrainable
from producers.gateway.config import GatewayConfig
from producers.gateway.recorder import Recorder
from producers.gateway.redaction.detectors import DETECTORS, luhn, mod97
from producers.gateway.redaction.redactor import RedactionFailed, Redactor
from producers.gateway.redaction.rules import BadRule, RedactionConfig, Rules
from producers.gateway.spool import Spool
from schemas.envelope import Event, new_event
from schemas.events import (
    FeedbackGiven,
    NextStateObserved,
    PolicyRef,
    Response,
    SessionClosed,
    Tokens,
    ToolCall,
    TurnRecorded,
    VersionSpan,
)
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, say, serving

NOWHERE = "127.0.0.1:9"
ALL = RedactionConfig(detectors=tuple(DETECTORS))
CHAT = "/v1/chat/completions"
MAIL = "ann.o'neil+x@mail.example.org"


def redacted(text: str, config: RedactionConfig = ALL) -> str:
    rules = Rules(config)
    return rules.text(text, rules.deadline())


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("write to bob@example.com.", "write to [email]."),
        ("<bob@example.com>,ann@a-b.example.org", "<[email]>,[email]"),
        ("müller@straße.de", "[email]"),
        ("a" * 100 + "@example.com", "a" * 36 + "[email]"),
        ("user@host and @name and a@b", "user@host and @name and a@b"),
        ("call +44 20 7946 0958 now", "call [phone] now"),
        ("tel:+1-555-010-9999", "tel:[phone]"),
        ("(555) 010-9999 or 555.010.9999", "[phone] or [phone]"),
        ("0049 30 901820", "[phone]"),
        ("order 1234567, 2026-12-01, 3+4444444", "order 1234567, 2026-12-01, 3+4444444"),
        ("card 4111 1111 1111 1111!", "card [credit_card]!"),
        ("4111-1111-1111-1111", "[credit_card]"),
        ("1 4111111111111111 2", "1 [credit_card] 2"),
        ("378282246310005", "[credit_card]"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),
        ("DE89 3704 0044 0532 0130 00 AND MORE", "[iban] AND MORE"),
        ("GB82WEST12345698765432", "[iban]"),
        ("gb82 west 1234 5698 7654 32", "[iban]"),
        ("GB83WEST12345698765432", "GB83WEST12345698765432"),
        ("at 192.168.0.1:80, and 10.0.0.255.", "at [ipv4]:80, and [ipv4]."),
        ("999.1.1.1 1.2.3.4.5", "999.1.1.1 1.2.3.4.5"),
        ("2001:db8::1 and ::ffff:192.0.2.1", "[ipv6] and ::ffff:[ipv4]"),
        ("12:30:45, std::vector", "12:30:45, std::vector"),
        ("key sk-abcDEF0123456789abcd, ghp_0123456789abcdefghijABCD", "key [api_key], [api_key]"),
        ("AKIAIOSFODNN7EXAMPLE task-sk-1", "[api_key] task-sk-1"),
        ("Authorization: Bearer abcdefghijklmnopqrstuvwxyz==", "Authorization: [api_key]"),
        ("t=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "t=[jwt]"),
        (
            "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIx\n-----END RSA PRIVATE KEY-----\nb",
            "a\n[private_key]\nb",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMII, cut", "[private_key]"),
        ("-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE-----"),
        ("", ""),
    ],
)
def test_each_detector_finds_its_own_and_no_other(text: str, clean: str) -> None:
    assert redacted(text) == clean


def test_checksums_are_those_of_the_standards() -> None:
    assert luhn("79927398713")
    assert not luhn("79927398710")
    assert mod97("GB82WEST12345698765432")
    assert not mod97("GB82WEST12345698765423")


@given(st.text(alphabet="aA1 .@:+-eyJsk_\n0", max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_and_a_second_time_changes_nothing(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


@pytest.mark.parametrize("piece", ["a", "1", "1 ", "a@", "a.", ":", "1.", "eyJ", "eyJaaaaaaaaa.", "+1", "sk-", "DE89",
                                   "-----BEGIN PRIVATE KEY-----", "a@b.", "(555) ", "é@"])  # fmt: skip
def test_no_text_holds_a_detector_up(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    redacted(text, RedactionConfig(detectors=tuple(DETECTORS), within_s=60.0))  # TooSlow otherwise


def test_a_key_keeps_equal_things_equal_and_others_apart() -> None:
    config = RedactionConfig(detectors=("email",), key="k1")
    first, again, other = redacted("a@example.com a@example.com b@example.com", config).split()
    assert first == again != other
    assert first.startswith("[email:")
    assert redacted("a@example.com", RedactionConfig(detectors=("email",), key="k2")) != first


def test_a_rule_of_the_settings_is_applied_under_its_name() -> None:
    config = RedactionConfig(rules={"ticket": r"\bTK-\d+\b", "name": "(?i)zaphod"})
    assert redacted("TK-42 of ZAPHOD", config) == "[ticket] of [name]"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (RedactionConfig(rules={"r": "("}), "rule r: no regular expression"),
        (RedactionConfig(rules={"r": "a*"}), "rule r: it fits an empty text"),
        (RedactionConfig(rules={"Bad name": "a"}), "is no name"),
        (RedactionConfig(rules={"email": "a"}), "is no name"),
        (RedactionConfig(detectors=("mail",)), "no detector is called 'mail'"),
    ],
)
def test_a_rule_that_is_none_is_named_at_start(config: RedactionConfig, says: str) -> None:
    with pytest.raises(BadRule, match=says):
        Rules(config)


def turn(**more: Any) -> Event:
    fields: dict[str, Any] = {
        "session_id": "s",
        "turn_id": "t1",
        "ordinal": 0,
        "messages": [{"role": "user", "content": "Hi"}],
        "response": Response(content="Hello."),
        "finish_reason": "stop",
        "policy": PolicyRef(name="policy", spans=[VersionSpan(version=3, start=0, end=2)]),
        "tokens": Tokens(source="engine", prompt_ids=[1, 2], response_ids=[3, 4], response_logprobs=[-0.5, -1.0]),
        **more,
    }
    return new_event(TurnRecorded(**fields), id="t1", source="test")


def through(event: Event) -> Event:
    (clean,) = Redactor(Rules(ALL)).events([event])
    return clean


HIDDEN = MAIL.replace("@", "\\u0040")
"""As JSON may write it."""
HIDING: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"I am {MAIL}"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": MAIL}]}]},
    {"messages": [{"role": "user", "content": "x", "name": MAIL}]},
    {"messages": [{"role": "tool", "content": f'[{{"to": "{HIDDEN}"}}]'}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": f'["{MAIL}"]'}}]}]},
    {"messages": [{"role": "user", "content": "x", MAIL: 1}]},
    {"messages": [{"role": "user", "content": f"data:text/plain;base64,{MAIL}"}]},
    {"tools": [{"type": "function", "function": {"name": "f", "description": MAIL}}]},
    {"response": Response(content=MAIL)},
    {"response": Response(reasoning=MAIL)},
    {"response": Response(tool_calls=[ToolCall(id="c", name="f", arguments=f'{{"a":\n"{MAIL}"}}')])},
    {"response": Response(tool_calls=[ToolCall(id="c", name="f", arguments=f'{{"a":"{HIDDEN}"}}')])},
    {"sampling": {"stop": [MAIL], "logit_bias": {"1": 2}}},
]


@pytest.mark.parametrize("hiding", HIDING)
def test_wherever_a_turn_says_it_the_turn_loses_it_and_its_tokens(hiding: dict[str, Any]) -> None:
    clean = through(turn(**hiding)).data
    assert isinstance(clean, TurnRecorded)
    assert clean.redacted
    assert "[email]" in str(clean)
    assert "ann.o" not in str(clean)
    assert clean.tokens == Tokens()
    assert clean.policy.spans == [VersionSpan(version=3, start=0, end=2)], "which version answered says nothing"
    assert clean.turn_id == "t1"
    for text in (False, True):
        drop = untrainable(clean, text=text)
        assert drop is not None
        assert drop.reason == "redacted"


def test_numbers_are_read_as_they_are_written() -> None:
    clean = through(turn(sampling={"seed": 4111111111111111, "temperature": 0.7, "n": 1})).data
    assert isinstance(clean, TurnRecorded)
    assert clean.sampling == {"seed": "[credit_card]", "temperature": 0.7, "n": 1}


def test_what_says_nothing_stays_word_for_word() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo4111111111111111="}}
    event = turn(
        messages=[{"role": "user", "content": ["Hi", picture]}, {"role": "tool", "content": '{"a": "\\u00e9", "b":1}'}]
    )
    assert through(event) is event


def test_next_states_feedback_and_the_names_of_sessions_are_redacted_too() -> None:
    state = NextStateObserved(next_state_id="n", session_id=MAIL, turn_id="t", kind="user_reply", content=MAIL)
    given_ = FeedbackGiven(feedback_id="f", session_id=MAIL, turn_id="t", score=1.0, correction=MAIL, author=MAIL)
    closed = SessionClosed(session_id=f"tenant/acme/{MAIL}")
    events = [new_event(data, id="x", source="test") for data in (state, given_, closed)]
    clean = Redactor(Rules(ALL)).events(events)
    assert MAIL not in str(clean)
    assert [getattr(event.data, "redacted", None) for event in clean] == [True, True, None]
    assert clean[0].data.session_id == clean[1].data.session_id
    assert clean[2].data.session_id.startswith("tenant/acme/redacted-")
    assert clean[2].subject == clean[2].data.session_id


SLOW = RedactionConfig(rules={"slow": r"(?:x+x+)+y"}, within_s=0.2)


def test_a_rule_that_would_take_for_ever_is_stopped_and_says_no_text() -> None:
    with pytest.raises(RedactionFailed, match="took too long") as caught:
        Redactor(Rules(SLOW)).events([turn(messages=[{"role": "user", "content": "x" * 5000}])])
    assert "xx" not in str(caught.value)


async def test_a_detector_that_fails_records_nothing_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str, within_s: float) -> Any:
        raise RuntimeError(text)

    monkeypatch.setitem(DETECTORS, "email", broken)
    config = GatewayConfig(
        bootstrap_servers=NOWHERE,
        upstream_url="http://127.0.0.1:9",
        spool_dir=tmp_path / "spool",
        blob_dir=tmp_path / "blobs",
        publish_timeout_s=0.5,
        redaction=RedactionConfig(detectors=("email",)),
    )
    recorder = Recorder(config)
    recorder.start()
    outcome = await recorder.submit([turn(messages=[{"role": "user", "content": "canary"}])])
    await recorder.stop()
    assert outcome == "false"
    assert recorder.redaction_failures == 1
    assert "turn t1 is not recorded" in caplog.text
    assert "canary" not in caplog.text
    assert b"canary" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.stack
async def test_neither_log_nor_disk_ever_holds_it_and_conversations_stay_linked(tmp_path: Path, broker: str) -> None:
    ensure_topics(broker, 8)

    async def mirror(request: web.Request) -> web.Response:
        said = (await request.json())["messages"][-1]["content"]
        choice = {"index": 0, "message": {"role": "assistant", "content": f"You: {said}"}, "finish_reason": "stop"}
        return web.json_response({"id": secrets.token_hex(4), "object": "chat.completion", "choices": [choice]})

    name = f"gw-{secrets.token_hex(4)}"
    config = RedactionConfig(detectors=("email",), key="k")
    first = [{"role": "user", "content": MAIL}]
    async with serving({CHAT: mirror}) as upstream:
        async with gateway(tmp_path, upstream, broker, redaction=config) as address:
            _, answer, _ = await say(address, {"messages": first}, {"X-Session-Id": name})
            assert answer["choices"][0]["message"]["content"] == f"You: {MAIL}", "the caller gets it as it was"
            later = [*first, answer["choices"][0]["message"], {"role": "user", "content": f"not {MAIL}"}]
            await say(address, {"messages": later}, {"X-Session-Id": name})
        async with gateway(tmp_path / "away", upstream, NOWHERE, redaction=config, publish_timeout_s=0.5) as address:
            _, _, headers = await say(address, {"messages": [*first, {"role": "user", "content": "x" * 700_000}]})
            assert headers["X-Hindstream-Recorded"] == "spooled"
    one, state, two = events_of(broker, name, 3)
    assert isinstance(one.data, TurnRecorded)
    assert isinstance(state.data, NextStateObserved)
    assert isinstance(two.data, TurnRecorded)
    assert MAIL not in str([one, state, two])
    assert state.data.turn_id == two.data.parent_turn_id == one.data.turn_id
    assert two.data.messages[0] == one.data.messages[0]
    kept = b"".join(path.read_bytes() for path in (tmp_path / "away").rglob("*") if path.is_file())
    assert MAIL.encode() not in kept
    waiting = Spool(tmp_path / "away" / "spool", 1 << 30)
    assert not waiting.empty
    waiting.close()
