"""What a micro-batch's rows become: all that its recipe reads, the same in a replay, and refused where changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from learner.batches import load_batch, load_trained
from learner.errors import LearnerStopped
from learner.samples import TrainingSample
from schemas.messages import MicroBatchPublished
from schemas.recipes import Recipe, recipe_named
from tests.learner.learning import Learning, Turn

pytestmark = pytest.mark.stack

NOBODY = {"judge": {"votes": 0}}
TAUGHT = {"hint": {"patterns": ["x"], "votes": 0}}


def loaded(learning: Learning, message: MicroBatchPublished) -> list[TrainingSample]:
    with learning.engine.begin() as connection:
        found = load_batch(connection, message)
    assert found is not None
    return [one.sample for one in found]


def session_of(name: str, rewards: list[float | None], first: int = 0) -> list[Turn]:
    return [
        Turn(oldest_version=0, reward=reward, session=name, ordinal=first + place)
        for place, reward in enumerate(rewards)
    ]


def test_earlier_rewards_are_those_in_micro_batches_so_far_and_a_replay_finds_the_same(
    start_learning: Callable[..., Learning],
) -> None:
    learning = start_learning(recipe=recipe_named("session-baseline", NOBODY))
    a = session_of("a", [1.0, -1.0, None, 1.0])
    b = session_of("b", [0.0, 1.0])
    # The session's second turn is judged last, as happens with a slow judge.
    first = learning.add_batch([a[0], b[0], a[2]], send=False)
    second = learning.add_batch([a[3], b[1]], send=False)
    learning.add_batch([a[1]], send=False)
    assert [sample.earlier_rewards for sample in loaded(learning, first)] == [(), (), (1.0,)]
    before = [sample.earlier_rewards for sample in loaded(learning, second)]
    assert before == [(1.0, None), (0.0,)]
    learning.execute(
        "UPDATE samples SET state = 'trained', staleness = 0 WHERE micro_batch_id = :batch", batch=second.micro_batch_id
    )
    with learning.engine.begin() as connection:
        again = load_trained(connection, second.micro_batch_id)
    assert [sample.earlier_rewards for sample in again] == before
    assert [sample.staleness for sample in again] == [0, 0]


def test_a_teacher_s_entries_are_loaded_by_token_and_its_prompt_where_the_recipe_scores_again(
    start_learning: Callable[..., Learning],
) -> None:
    turns = [Turn(oldest_version=0, reward=None, teacher=0.5), Turn(oldest_version=0, reward=1.0)]
    for name, prompt in (("opd-topk", None), ("sdpo", [1])):
        overrides = TAUGHT | ({"distillation": {"k": 4}} if name == "sdpo" else {})
        learning = start_learning(recipe=recipe_named(name, overrides))
        taught, plain = loaded(learning, learning.add_batch(turns, send=False))
        assert taught.teacher_topk_ids is not None
        assert taught.teacher_topk_logprobs is not None
        assert taught.teacher_topk_ids.shape == taught.teacher_topk_logprobs.shape == (len(taught.response_ids), 4)
        assert (taught.teacher_topk_ids == taught.response_ids[:, None]).all()
        found = taught.hinted_prompt_ids
        assert (None if found is None else found.tolist()) == prompt
        assert plain.teacher_topk_ids is None
        assert plain.hinted_prompt_ids is None


@pytest.mark.parametrize(
    ("recipe", "change", "stops"),
    [
        (recipe_named("grpo", NOBODY), "UPDATE turns SET group_id = 'other'", True),
        (recipe_named("session-baseline", NOBODY), "UPDATE turns SET ordinal = ordinal + 1", True),
        (recipe_named("binary-rl", NOBODY), "UPDATE turns SET group_id = 'other', ordinal = 7", False),
        (recipe_named("sdpo", TAUGHT), "UPDATE teacher_scores SET hinted_prompt_ids = '\\x02000000'", True),
        (recipe_named("opd", TAUGHT), "UPDATE teacher_scores SET hinted_prompt_ids = '\\x02000000'", False),
    ],
)
def test_what_the_recipe_reads_must_be_as_it_was_when_the_sample_became_ready(
    start_learning: Callable[..., Learning], recipe: Recipe, change: str, stops: bool
) -> None:
    learning = start_learning(recipe=recipe)
    message = learning.add_batch([Turn(oldest_version=0, teacher=0.5, group="g", session="s")], send=False)
    learning.execute(change)
    if stops:
        with pytest.raises(LearnerStopped, match="was changed after it became ready"):
            loaded(learning, message)
    else:
        (sample,) = loaded(learning, message)
        assert sample.group_id == ("other" if "group_id" in change else "g")
