"""A log alone trains a model: an imported chat file of texts without tokens, replayed with offline recipes down to
weight versions, and to the same ones again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine, create_engine, text
from transformers import LlamaConfig, LlamaForCausalLM

from hindstream.cli.topics import ensure_topics
from hindstream.settings import child_environment
from learner.config import LearnerConfig
from learner.fold import resume
from schemas.chat_tokens import ChatTokens
from schemas.envelope import encode, new_event
from schemas.events import (
    EventData,
    FeedbackGiven,
    NextStateObserved,
    PolicyRef,
    Response,
    SessionClosed,
    Tokens,
    TurnRecorded,
)
from schemas.structured import LogRecord, to_line

pytestmark = pytest.mark.stack

TOKENIZER_FILES = ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
RULES = '[{"pattern": "thanks", "score": 1}, {"pattern": "wrong", "score": -1}]'
JUDGE = ("--set", "judge.votes=0", "--set", f"judge.rules={RULES}")


def tiny_chat_model(directory: Path, tokenizer: Path) -> Path:
    """A Llama of one small layer that reads SmolLM2's tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.to(torch.bfloat16).save_pretrained(directory)
    for name in TOKENIZER_FILES:
        shutil.copy(tokenizer / name, directory / name)
    return directory


class Offline:
    """The command line on a database, a broker and a home of its own."""

    def __init__(self, bootstrap: str, url: str, directory: Path, tokenizer: Path) -> None:
        self.bootstrap, self.url, self.home = bootstrap, url, directory / "home"
        self.engine: Engine = create_engine(url)
        self.model = tiny_chat_model(directory / "base", tokenizer)
        ensure_topics(bootstrap, 8)

    def replay(self, file: Path, name: str, recipe: str, *more: str) -> str:
        """To its end; returns what it printed."""
        environment = child_environment(
            HINDSTREAM_HOME=str(self.home),
            HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS=self.bootstrap,
            HINDSTREAM_DATABASE__URL=self.url,
            HINDSTREAM_MODEL=str(self.model),
            HINDSTREAM_LEARNER__THREADS="1",
            OMP_WAIT_POLICY="PASSIVE",
        )
        arguments = ["replay", str(file), "--name", name, "--recipe", recipe, "--set", "optimizer.lr=0.01", *more]
        done = subprocess.run(
            [sys.executable, "-m", "hindstream", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    def ends(self, run: str) -> dict[str, tuple[str, str | None]]:
        """By the answer's text: how its sample ended."""
        found = self.rows(
            "SELECT t.response ->> 'content', s.state, s.drop_reason FROM samples s JOIN turns t USING (turn_id) "
            "WHERE s.run = :run",
            run=run,
        )
        return {content: (state, reason) for content, state, reason in found}

    def trained_again(self, run: str) -> float:
        """How far the newest version is from what the log makes of version 0 now."""
        (newest,) = self.rows(
            "SELECT policy, max(version), max(path) FROM weight_versions WHERE run = :run GROUP BY policy", run=run
        )
        policy, version, _ = newest
        ((path,),) = self.rows(
            "SELECT path FROM weight_versions WHERE policy = :p AND version = :v", p=policy, v=version
        )
        weights = self.home / "weights"
        shutil.rmtree(weights / policy / "state", ignore_errors=True)
        config = LearnerConfig(
            bootstrap_servers=self.bootstrap,
            database_url=self.url,
            run=run,
            policy=policy,
            model_dir=self.model,
            weights_dir=weights,
            threads=1,
        )
        again = resume(config, self.engine, threading.Event())
        assert (again.version, again.replayed) == (version, version)
        return again.policy.largest_difference(Path(path))


@pytest.fixture
def offline(broker: str, migrated_database_url: str, tmp_path: Path, model_dir: Path) -> Offline:
    return Offline(broker, migrated_database_url, tmp_path, model_dir)


def share_gpt(path: Path, chats: list[list[str]]) -> Path:
    """A file of ShareGPT's form; people and model take turns."""
    lines = [
        {
            "id": f"chat-{number}",
            "conversations": [{"from": ("human", "gpt")[place % 2], "value": said} for place, said in enumerate(chat)],
        }
        for number, chat in enumerate(chats)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_an_imported_chat_file_trains_a_model_by_sft(offline: Offline, tmp_path: Path) -> None:
    chats = [["Is it?", "It is. <|im_end|> And more.", "thanks", "Welcome."]]
    chats += [[f"What is {n}?", f"It is {n}.", "thanks" if n % 3 else "wrong", "Right away."] for n in range(11)]
    said = offline.replay(share_gpt(tmp_path / "chats.jsonl", chats), "fine", "sft", *JUDGE, "--set", "batch.size=4")
    ends = offline.ends("fine")
    for number in range(11):
        expected = ("trained", None) if number % 3 else ("dropped", "no_signal")
        assert ends[f"It is {number}."] == expected, said
    assert ends["Right away."] == ("dropped", "no_next_state")
    assert ends["It is. <|im_end|> And more."] == ("dropped", "not_renderable")
    versions = offline.rows("SELECT version, manifest FROM weight_versions WHERE run = 'fine' ORDER BY version")
    chat = ChatTokens(offline.model)
    assert [(version, manifest["tokenizer"]) for version, manifest in versions] == [
        (1, chat.fingerprint),
        (2, chat.fingerprint),
    ]
    steps = offline.rows(
        "SELECT (metrics ->> 'loss')::float, (metrics ->> 'tokens')::float, metrics ->> 'ratio_p50' "
        "FROM training_steps ORDER BY version"
    )
    assert steps[1][0] < steps[0][0]
    asked = [{"role": "user", "content": "?"}]
    answers = [{"role": "assistant", "content": f"It is {n}."} for n in range(11) if n % 3]
    # An answer and the end of its turn; the line's end that the template writes after it is nobody's.
    lengths = [len(chat.turn(asked, [], answer).response_ids) for answer in answers]
    assert [tokens for _, tokens, _ in steps] == [sum(lengths[:3]), sum(lengths[3:])]
    assert [ratio for *_, ratio in steps] == [None, None]
    assert offline.trained_again("fine") == 0.0


def branching(path: Path, sessions: int) -> Path:
    """An archive of sessions whose first answer was regenerated, or which a person corrected (every third)."""
    events: list[EventData] = []
    for number in range(sessions):
        name = f"branch-{number}"
        corrected = number % 3 == 0
        for place, reply in enumerate(("wrong",) if corrected else ("wrong", "thanks")):
            turn = TurnRecorded(
                session_id=name,
                turn_id=f"{name}-{place}",
                ordinal=0,
                messages=[{"role": "user", "content": f"What is {number}?"}],
                response=Response(content=f"{('No idea', 'It is')[place]} {number}."),
                finish_reason="stop",
                policy=PolicyRef(name="somebody"),
                tokens=Tokens(source="none"),
            )
            state_id = f"next-{turn.turn_id}"
            events.append(turn)
            events.append(
                NextStateObserved(
                    next_state_id=state_id, session_id=name, turn_id=turn.turn_id, kind="user_reply", content=reply
                )
            )
        if corrected:
            words = f"It is {number}."
            events.append(
                FeedbackGiven(feedback_id=f"f-{name}", session_id=name, turn_id=f"{name}-0", correction=words)
            )
        events.append(SessionClosed(session_id=name, reason="done"))
    with path.open("wb") as file:
        for offset, data in enumerate(events):
            wired = encode(new_event(data, id=f"event-{offset}", source="test"))
            record = LogRecord(
                topic="agent-events",
                partition=0,
                offset=offset,
                time="2026-01-01T00:00:00Z",
                headers=wired.headers,
                value=wired.value,
            )
            file.write(to_line(record) + b"\n")
    return path


def test_an_imported_log_trains_a_model_by_dpo(offline: Offline, tmp_path: Path) -> None:
    """6 sessions: 4 pairs of branches and 2 corrections, in 2 micro-batches of 5 turns at least."""
    file = branching(tmp_path / "log.jsonl", 6)
    said = offline.replay(file, "preferred", "dpo", *JUDGE, "--set", "batch.size=5")
    assert set(offline.ends("preferred").values()) == {("trained", None)}, said
    steps = offline.rows(
        "SELECT (metrics ->> 'pairs')::float, (metrics ->> 'pair_loss')::float, (metrics ->> 'pair_accuracy')::float "
        "FROM training_steps ORDER BY version"
    )
    assert [pairs for pairs, _, _ in steps] == [3, 3]
    assert steps[0][1:] == (pytest.approx(0.6931, abs=1e-4), 0)  # the base model is its own reference
    assert steps[1][1] < 0.6931
    assert steps[1][2] == 1
    assert offline.trained_again("preferred") == 0.0
