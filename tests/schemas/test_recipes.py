"""Recipes as data: what cannot work is refused by name, and digests change with what is asked and with nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from learner.estimators import ESTIMATORS
from learner.options import step_options
from learner.terms import SURROGATES
from schemas.recipes import PRESETS, InvalidRecipe, LossSpec, needs_of, recipe_from_dict, recipe_named
from schemas.recipes.advantages import ADVANTAGES
from schemas.recipes.changes import parse_overrides

OF_THE_DESIGN = {
    "binary-rl", "opd", "opd-topk", "combine", "grpo", "dr-grpo", "ppo", "reinforce++", "session-baseline",
    "best-of-n", "k1.5", "k2.5", "g-opd", "exopd", "opcd", "sdpo",
}  # fmt: skip


def test_every_recipe_of_the_design_is_a_preset_that_works_and_they_differ() -> None:
    assert set(PRESETS) >= OF_THE_DESIGN
    for name, recipe in PRESETS.items():
        assert recipe_named(name) == recipe
        assert recipe_from_dict(msgspec.to_builtins(recipe)) == recipe
        step_options(recipe, 1000)
    assert len({recipe.digest() for recipe in PRESETS.values()}) == len(PRESETS)


def test_the_contract_names_what_the_learner_can_do() -> None:
    assert set(ADVANTAGES) == set(ESTIMATORS)
    (surrogate,) = (field for field in msgspec.structs.fields(LossSpec) if field.name == "surrogate")
    assert set(surrogate.type.__args__) == set(SURROGATES)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("binary-rl", "de06e849bee3e0dfd294dca0c15422042f246074ca0f0a2aa2b97c524921d217"),
        ("opd", "4808b7ce2bb5aa75e9e321835e3a9376201bbda8005d281556dd1976a373b27b"),
        ("combine", "c70f205b2755a58c7b5543b3a4b3e7ca9f57ba377ae532751c38c7beb071f8f6"),
    ],
)
def test_a_run_keeps_its_digest_when_recipes_learn_new_fields(name: str, digest: str) -> None:
    """As they were before most of the fields were there. A run's recipe that was stored then still reads as it did."""
    recipe = PRESETS[name]
    assert recipe.digest() == digest
    stored = msgspec.to_builtins(recipe)
    for table in ("advantage", "distillation", "critic", "lora"):
        stored.pop(table, None)
    stored["loss"] = {field: stored["loss"][field] for field in ("w_rl", "w_opd", "clip_low", "clip_high")}
    assert recipe_from_dict(stored).digest() == digest


@pytest.mark.parametrize(
    "overrides",
    [
        {"loss": {"decoupled": True}},
        {"loss": {"mismatch": [{"kind": "veto", "low": 1e-4}]}},
        {"advantage": {"kind": "session"}},
        {"optimizer": {"warmup_steps": 3}},
        {"teacher": {"weights": "ema"}},
        {"hint": {"place": "system"}},
        {"batch": {"size": 17}},
    ],
)
def test_every_field_that_is_not_at_its_default_changes_the_digest(overrides: dict[str, Any]) -> None:
    assert recipe_named("combine", overrides).digest() != PRESETS["combine"].digest()


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"loss": {"clip": 1}}, "no recipe field 'clip' in loss"),
        ({"judge": {"rules": [{"pattern": "a", "score": 1, "kind": []}]}}, r"'kind' in judge.rules\[0\], did you mean"),
        ({"loss": {"clip_low": -0.1}}, "loss.clip_low -0.1 must be at least 0"),
        ({"optimizer": {"betas": [0.9, 1.5]}}, r"optimizer.betas\[1\] 1.5 must be at most 1"),
        ({"optimizer": {"weight_decay": float("inf")}}, "optimizer.weight_decay is inf; it must be a finite number"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr"),
        ({"advantage": {"kind": "grup"}}, "advantage.kind 'grup' is unknown; there are: reward, group"),
        ({"advantage": {"kind": "gae"}}, r"needs values: add a \[critic\]"),
        ({"critic": {}}, "critic: advantage.kind 'reward' reads no values"),
        ({"batch": {"group_size": 4}}, "batch.group_size: advantage.kind 'reward' compares no groups"),
        ({"batch": {"group_size": 1}}, "batch.group_size 1 must be at least 2"),
        ({"loss": {"w_rl": 0, "w_opd": 0}}, "nothing would be trained"),
        ({"loss": {"aggregation": "constant"}}, "needs loss.aggregation_constant"),
        ({"loss": {"decoupled": False, "tis_cap": 2}}, "it would count twice"),
        ({"loss": {"mismatch": [{"kind": "truncate", "high": 2}]}}, "set loss.decoupled = true"),
        ({"loss": {"mismatch": [{"kind": "veto"}]}}, r"loss.mismatch\[0\]: a veto needs low"),
        ({"loss": {"mismatch": [{"kind": "reject", "low": 3, "high": 2}]}}, "low 3.0 must be at most high 2.0"),
        ({"loss": {"surrogate": "band", "dual_clip": 3}}, "loss.dual_clip bounds the surrogate 'ppo_clip'"),
        ({"distillation": {"kind": "topk", "k": 9}}, "set teacher.top_k to 9 at least"),
        ({"distillation": {"kind": "topk", "entries": "teacher"}}, "set it to 'student'"),
        ({"distillation": {"kind": "divergence"}, "loss": {"normaliser": "batch"}}, "use 'component'"),
        (
            {"loss": {"surrogate": "ppo"}},
            "loss.surrogate: 'ppo' is none of 'ppo_clip', 'gspo', 'cispo', 'mirror', 'band'",
        ),
        ({"loss": {"mismatch": [{"kind": "x"}]}}, "'x' is none of 'truncate', 'mask', 'reject', 'veto'"),
        ({"loss": {"mismatch": [{"kid": "x"}]}}, r"no recipe field 'kid' in loss.mismatch\[0\], did you mean 'kind'"),
        ({"judge": {"rules": [{"pattern": "a", "score": 3}]}}, "3 is none of -1, 0, 1"),
        ({"hint": {"context": " "}}, "hint.context is empty"),
        ({"hint": {"votes": 0}}, "no context, no patterns and no votes"),
        ({"loss": {"clip_high": "0.3"}}, "loss.clip_high: Expected `float`, got `str`"),
        ({"advantage": {"kind": "liked"}}, "set loss.surrogate to 'nll'"),
        ({"batch": {"tokens": "text"}}, "loss.surrogate: batch.tokens 'text' knows no sampled ids and log-probs"),
        ({"batch": {"tokens": "text"}}, "distillation.kind: batch.tokens 'text' .*; set it to 'divergence'"),
        ({"batch": {"tokens": "text"}, "loss": {"tis_cap": 2}}, "loss.tis_cap: .*; leave it out"),
    ],
)
def test_what_cannot_work_is_refused_with_its_field(overrides: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRecipe, match=match):
        recipe_named("combine", overrides)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"loss": {"aggregation": "token_mean"}}, "compares sums over answers; set it to 'sequence_sum'"),
        ({"loss": {"normaliser": "batch"}}, "has a loss of its own; set it to 'component'"),
        ({"optimizer": {"steps": 2}}, "weighs each pair before the step; set it to 1"),
        ({"advantage": {"beta": 0}}, "advantage.beta 0 must be above 0"),
        ({"teacher": {"weights": "ema"}}, "teacher.weights 'ema' without a hint"),
    ],
)
def test_pairs_that_cannot_be_compared_so_are_refused(overrides: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRecipe, match=match):
        recipe_named("dpo", overrides)


def test_overrides_are_json_where_they_are_json() -> None:
    assert parse_overrides(["a.b=0.3", "a.c=text", "d=[1, 2]", "e=null", 'f="3"', "a.b=4", "g=x=y"]) == {
        "a": {"b": 4, "c": "text"}, "d": [1, 2], "e": None, "f": "3", "g": "x=y",
    }  # fmt: skip


def test_needs_say_what_the_data_must_hold() -> None:
    needs = {name: needs_of(recipe) for name, recipe in PRESETS.items()}
    assert {name for name, need in needs.items() if need.groups} == {"grpo", "dr-grpo", "best-of-n", "k1.5", "k2.5"}
    assert {name for name, need in needs.items() if need.session} == {"session-baseline"}
    assert {name for name, need in needs.items() if need.hinted_prompt} == {"sdpo"}
    assert {name for name, need in needs.items() if need.reference} == {"ppo", "g-opd", "exopd", "dpo"}
    assert {name for name, need in needs.items() if need.text} == {"sft", "dpo", "kd"}
    assert {name for name, need in needs.items() if need.pairs} == {"dpo"}
    assert {name for name, need in needs.items() if need.prompt_scores} == {"kd"}
    assert not any(needs[name].zero_counts for name in ("binary-rl", "combine", "opd", "sdpo"))
    assert all(needs[name].zero_counts for name in ("grpo", "reinforce++", "ppo", "session-baseline"))
