"""A real vLLM server that takes adapters: each is loaded in place, and no request is refused.

It is a server of its own: vLLM 0.32 on a CPU stops where one that takes adapters scores a prompt beside other requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hindstream.settings import Settings, VllmSettings
from learner.beside import load_beside
from learner.errors import LearnerStopped
from learner.policy_server import PolicyServer
from tests.conftest import MAX_MODEL_LEN, SessionStack
from tests.learner.following import Serving, generate, sharper

pytestmark = [pytest.mark.stack, pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture
def serving(
    migrated_database_url: str,
    topics: str,
    stack_home: Path,
    model_dir: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Serving]:
    home = stack_home / "adapters"
    home.mkdir()
    session = SessionStack(
        home, Settings(home=home, vllm=VllmSettings(max_model_len=MAX_MODEL_LEN, max_lora_rank=8)), request.config
    )
    try:
        server = session.up(("vllm",)).policy_url
        assert server is not None
        made = Serving(migrated_database_url, topics, server, model_dir, tmp_path, "adapters")
        yield made
        made.engine.dispose()
    finally:
        session.stack.remove()


def test_adapters_are_loaded_in_place_under_a_name_of_their_own(serving: Serving) -> None:
    """vLLM serves the base as an adapter that adds nothing, then one adapter after the other, while a request runs; its
    base model goes on answering under its own name."""
    serving.server = PolicyServer(serving.server.url, "adapted", timeout_s=120)
    base = PolicyServer(serving.server.url, "policy", timeout_s=120)
    assert (base.takes_adapters(), serving.server.takes_adapters(), serving.server.answers()) == (False, True, False)
    with serving.followed(model="adapted"):
        serving.until(lambda: serving.loads() == [(0, "serving")])
        answer = {"max_tokens": 8, "ignore_eos": True}
        own = generate(serving.server.url, model="policy", **answer)["choices"][0]["token_ids"]
        assert generate(serving.server.url, model="adapted", **answer)["choices"][0]["token_ids"] == own
        before = serving.server.canary()
        serving.add_adapter(1, 0.01, send=False)
        with ThreadPoolExecutor(1) as pool:
            flying = pool.submit(generate, serving.server.url, model="adapted", max_tokens=80, ignore_eos=True)
            time.sleep(1.0)
            serving.send()
            serving.until(lambda: (1, "serving") in serving.loads())
            spans = flying.result(300)["choices"][0]["weight_versions"]
        assert [span["version"] for span in spans] == ["0", "1"]
        first = serving.server.canary()
        serving.add_adapter(2, 0.02)
        serving.until(lambda: (2, "serving") in serving.loads())
        second = serving.server.canary()
        assert len({tuple(values) for values in (before, first, second)}) == 3
        assert generate(serving.server.url, model="policy", **answer)["choices"][0]["token_ids"] == own
        # For pinned teachers: versions side by side, each by its own name, while the server's own and its tag stay.
        for version, canary in ((1, first), (2, second)):
            assert beside(serving, version) == f"policy@{version}"
            own_name = PolicyServer(serving.server.url, f"policy@{version}", timeout_s=120)
            assert own_name.canary() == pytest.approx(canary)
        assert (serving.server.tag(), serving.server.canary()) == ("2", second)
        serving.add(3, sharper)
        serving.until(lambda: (3, "serving") in serving.loads())
        assert serving.server.tag() == "3"
        assert serving.server.canary() not in (before, first, second)
    for version, why in ((3, "version 3 .* is full, and only an adapter"), (1, "the full weights of version 3")):
        with pytest.raises(LearnerStopped, match=why):
            beside(serving, version)
    assert [status for _, status in serving.loads()] == ["serving"] * 4


def beside(serving: Serving, version: int) -> str:
    url, policy = serving.server.url, serving.policy
    with serving.engine.begin() as connection:
        return load_beside(
            connection, weights_dir=serving.weights, policy=policy, version=version, url=url, model="policy"
        )
