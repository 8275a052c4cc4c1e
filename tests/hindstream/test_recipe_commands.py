"""`hindstream recipes`, recipes in files, and overrides."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hindstream.cli.recipes import app
from hindstream.errors import UserError
from hindstream.recipes import load_recipe, run_recipe
from hindstream.settings import load_settings
from schemas.recipes import PRESETS, recipe_from_dict, recipe_named


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_every_preset_is_listed_with_its_words() -> None:
    code, output = run("list")
    assert code == 0
    for name, recipe in PRESETS.items():
        assert f"{name} " in output
        assert recipe.description in output
    assert re.search(r"^ppo +judge, critic, base model +GAE", output, re.MULTILINE)
    assert re.search(r"^best-of-n +judge, groups +n candidates", output, re.MULTILINE)


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_shown_is_the_recipe(name: str, tmp_path: Path) -> None:
    code, output = run("show", name)
    assert code == 0
    assert output.startswith(f"# digest {PRESETS[name].digest()}\n")
    assert recipe_from_dict(tomllib.loads(output)) == PRESETS[name]
    file = tmp_path / "mine.toml"
    file.write_text(output)
    assert load_recipe(str(file)) == PRESETS[name]


def test_show_and_diff_take_overrides() -> None:
    _, output = run("show", "combine", "--set", "loss.clip_high=0.3", "--set", "judge.votes=5")
    shown = recipe_from_dict(tomllib.loads(output))
    assert (shown.loss.clip_high, shown.judge and shown.judge.votes) == (0.3, 5)
    code, output = run("diff", "combine", "combine", "--set", "loss.clip_high=0.3")
    assert code == 1
    assert output.splitlines()[1].split() == ["loss.clip_high", "0.28", "0.3"]
    assert run("diff", "combine", "combine") == (0, "")


def test_diff_tells_a_table_that_one_of_them_has_not() -> None:
    code, output = run("diff", "binary-rl", "combine")
    fields = {line.split()[0] for line in output.splitlines()[1:]}
    assert code == 1
    assert {"loss.w_opd", "teacher.top_k", "hint.votes"} <= fields
    assert not fields & {"name", "description", "judge.votes"}


def test_a_run_s_recipe_has_the_overrides_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDSTREAM_RUN__RECIPE", "grpo")
    monkeypatch.setenv("HINDSTREAM_RUN__OVERRIDES", '["optimizer.lr=1e-5", "batch.group_size=4"]')
    assert run_recipe(load_settings()) == recipe_named("grpo", {"optimizer": {"lr": 1e-5}, "batch": {"group_size": 4}})


def test_a_json_file_is_a_recipe_too_and_its_faults_name_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"name": "mine", "description": "", "judge": {}, "loss": {"w_opd": 0}}))
    assert load_recipe(str(file)).loss.w_opd == 0
    file.write_text(json.dumps({"name": "mine", "description": "", "judge": {}}))
    with pytest.raises(UserError, match=r"mine\.json: .*loss\.w_opd is set but there is no hint"):
        load_recipe(str(file))
    file.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        load_recipe(str(file))
    with pytest.raises(UserError, match="there is no recipe file"):
        load_recipe(str(tmp_path / "other.toml"))
    with pytest.raises(UserError, match=r"no recipe 'grop'.*grpo"):
        load_recipe("grop")


@pytest.mark.parametrize(
    ("assignment", "match"),
    [
        ("loss.clip_hihg=0.3", "no recipe field 'clip_hihg' in loss, did you mean 'clip_high'"),
        ("loss.clip_high", "sets no field"),
        ("=3", "sets no field"),
        ("loss.surrogate=ppo", "loss.surrogate"),
        ("batch.size=0", "batch.size 0 must be at least 1"),
        ("loss=3", "loss: Expected `object`"),
    ],
)
def test_an_override_that_does_not_fit_is_refused_by_name(assignment: str, match: str) -> None:
    with pytest.raises(UserError, match=match):
        load_recipe("combine", [assignment])


def test_the_page_names_every_preset_and_its_commands_work_as_pasted() -> None:
    page = (Path(__file__).parents[2] / "docs/recipes.md").read_text()
    assert all(f"`{name}`" in page for name in PRESETS)
    lines = [line for line in page.splitlines() if line.startswith(".venv/bin/hindstream recipes ")]
    assert len(lines) >= 6
    for line in lines:
        code, output = run(*shlex.split(line)[2:])
        assert output
        assert code == (1 if " diff " in line else 0), line


def test_the_page_s_own_recipe_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/recipes.md").read_text()
    file = tmp_path / "patient.toml"
    file.write_text(page.split("```toml\n")[1].split("```")[0])
    assert load_recipe(str(file)).loss.surrogate == "gspo"
