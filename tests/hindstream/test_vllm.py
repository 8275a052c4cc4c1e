"""The model server as the rest of Hindstream relies on it."""

from __future__ import annotations

import os
import signal
import urllib.request
from typing import Any

import pytest

from hindstream.stack import processes
from hindstream.stack.vllm import post
from tests.conftest import SessionStack

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
TIMEOUT_S = 120.0


def ask(server: str, path: str, **body: Any) -> dict[str, Any]:
    return post(f"{server}{path}", {"model": "policy", **body}, TIMEOUT_S)


def chat(server: str, text: str, **body: Any) -> dict[str, Any]:
    return ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)


def test_it_answers_and_stops_at_the_end_of_its_turn(vllm_server: str) -> None:
    answer = chat(vllm_server, "What is the capital of France? One word.", max_tokens=40, temperature=0.0)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_tokens_in_tokens_out_with_log_probs_and_version(vllm_server: str) -> None:
    rendered = ask(vllm_server, "/v1/chat/completions/render", messages=[{"role": "user", "content": "Hi"}])
    answer = ask(
        vllm_server,
        "/inference/v1/generate",
        token_ids=rendered["token_ids"],
        sampling_params={"max_tokens": 6, "temperature": 1.0, "seed": 1, "logprobs": 0, "ignore_eos": True},
    )["choices"][0]
    assert len(answer["token_ids"]) == 6
    assert [entry["token_id"] for entry in answer["logprobs"]["content"]] == answer["token_ids"]
    assert all(entry["logprob"] < 0 for entry in answer["logprobs"]["content"])
    spans = answer["weight_versions"]
    assert sum(span["end"] - span["start"] for span in spans) == 6


def test_a_constrained_answer_is_one_of_the_choices(vllm_server: str) -> None:
    answer = chat(vllm_server, "Good or bad?", max_tokens=5, structured_outputs={"choice": ["good", "bad", "neutral"]})
    assert answer["choices"][0]["message"]["content"] in {"good", "bad", "neutral"}


def test_the_development_endpoints_listen_on_loopback_only(vllm_server: str, session_stack: SessionStack) -> None:
    with urllib.request.urlopen(f"{vllm_server}/weight_info", timeout=TIMEOUT_S) as answer:
        assert answer.status == 200
    port = session_stack.stack.running()["vllm"].port
    with open("/proc/net/tcp") as table:
        listening = [line.split()[1] for line in table.readlines()[1:] if line.split()[3] == "0A"]
    assert [address for address in listening if int(address.split(":")[1], 16) == port] == [f"0100007F:{port:04X}"]


def test_after_a_kill_its_children_are_ended_and_it_serves_at_the_same_address(
    vllm_server: str, session_stack: SessionStack
) -> None:
    leader = session_stack.stack.known()["vllm"].process
    family = [found for pid in processes.members(leader) if (found := processes.identify(pid))]
    assert len(family) > 1, "vLLM runs its engine in processes of its own"
    os.kill(leader.pid, signal.SIGKILL)
    assert processes.wait_until_gone(leader, 10)
    assert "vllm" not in session_stack.stack.running()
    assert session_stack.up(("vllm",)).policy_url == vllm_server
    assert not any(processes.is_alive(process) for process in family)
    assert chat(vllm_server, "Hi", max_tokens=3)["choices"][0]["message"]["content"]
