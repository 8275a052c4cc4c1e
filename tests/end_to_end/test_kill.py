"""`kill -9` of the Faust worker, an evaluator and the learner at random moments: nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from hindstream.demo.recipe import demo_recipe
from producers.simulated_user.questions import QuestionStream
from schemas.recipes import Recipe
from tests.end_to_end.pipeline import Pipeline
from tests.end_to_end.test_main_path import converse

pytestmark = [pytest.mark.stack, pytest.mark.vllm, pytest.mark.slow]

BATCH = 4
TURNS = 24
PROCESSES = {
    "worker": ("worker", "run", "--roles", "agents,batcher,relay,idle"),
    "evaluators": ("worker", "run", "--roles", "evaluators"),
    "learner": ("learner", "run"),
}


def test_every_turn_is_accounted_for_after_each_process_was_killed(
    start_pipeline: Callable[[Recipe, str], Pipeline],
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    recipe = demo_recipe(lr=1e-5, batch_size=BATCH)
    # A killed process lets turns grow old; here each must be trained, so that "none lost" can be counted.
    recipe = msgspec.structs.replace(recipe, batch=msgspec.structs.replace(recipe.batch, max_staleness=TURNS))
    pipeline = start_pipeline(recipe, "kill")
    for name, arguments in PROCESSES.items():
        pipeline.start(name, *arguments)
    pipeline.start("weights", "weights", "follow")
    pipeline.start_gateway()
    served = "SELECT count(*) FROM weight_loads WHERE policy = 'kill' AND status = 'serving'"
    pipeline.wait(lambda: pipeline.value(served) > 0, 300, "version 0 is not served")

    answered: list[str] = []
    faults: list[BaseException] = []

    def talk() -> None:
        questions = QuestionStream(seed)
        try:
            for i in range(TURNS):
                answered.append(converse(pipeline, f"talk-{i}", questions.next()).turn_id)
        except BaseException as fault:
            faults.append(fault)

    talking = threading.Thread(target=talk)
    talking.start()
    trained = "SELECT count(*) FROM samples WHERE state = 'trained'"
    order = list(PROCESSES)
    chance.shuffle(order)
    pipeline.wait(lambda: pipeline.value(trained) > 0, 300, "nothing was trained")
    for name in order:
        time.sleep(chance.uniform(0.0, 6.0))
        pipeline.services.kill(name)
        pipeline.start(name, *PROCESSES[name])
    talking.join(timeout=400)
    assert not talking.is_alive()
    assert faults == []

    whole = TURNS // BATCH * BATCH
    pipeline.wait(lambda: pipeline.value(trained) == whole, 300, f"not all of {whole} turns were trained")
    main = "SELECT count(*) FROM turns WHERE kind = 'main'"
    assert pipeline.value(main) == TURNS == len(set(answered))
    ledger = pipeline.ledger()
    assert ledger["balance"] == 0
    assert ledger["turns_seen"] == 2 * TURNS
    assert ledger["trained"] == whole
    assert ledger["dropped"] == TURNS
    assert ledger["pending"] == ledger["ready"] == 0

    batches = pipeline.rows("SELECT * FROM micro_batches ORDER BY seq")
    assert [batch.seq for batch in batches] == list(range(1, whole // BATCH + 1))
    steps = pipeline.rows("SELECT * FROM training_steps ORDER BY step")
    assert [step.step for step in steps] == list(range(1, len(batches) + 1))
    assert [step.micro_batch_id for step in steps] == [batch.micro_batch_id for batch in batches]
    versions = pipeline.rows("SELECT * FROM weight_versions ORDER BY version")
    assert [version.version for version in versions] == list(range(len(batches) + 1))
    twice = pipeline.rows(
        "SELECT sample_id FROM samples WHERE state = 'trained' GROUP BY sample_id HAVING count(*) > 1"
    )
    assert twice == []
    per_batch = pipeline.rows("SELECT micro_batch_id, count(*) AS n FROM samples WHERE state = 'trained' GROUP BY 1")
    assert {row.n for row in per_batch} == {BATCH}
    assert pipeline.value("SELECT count(*) FROM dead_letters") == 0
    votes_twice = pipeline.value(
        "SELECT count(*) FROM (SELECT 1 FROM votes GROUP BY run, turn_id, signal, vote HAVING count(*) > 1) v"
    )
    assert votes_twice == 0
