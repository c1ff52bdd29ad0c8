"""The README is a manual: what it says must be what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_continuous_integration_runs_the_second_command_word_for_word() -> None:
    second = CONSOLE[1].strip()
    assert second.endswith("-m pytest")
    assert second in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("command", sorted({line.split()[1] for line in CONSOLE[2].splitlines()}))
def test_commands_and_their_options_exist(command: str) -> None:
    from llm_sampler.scripts.main import app

    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    used = {
        option
        for line in "\n".join(CONSOLE).splitlines()
        if f"llm-sampler {command}" in line
        for option in re.findall(r"--[a-z-]+", line)
    }
    assert {option for option in used if option not in shown.output} == set()


@pytest.mark.parametrize("block", range(len(PYTHON)))
def test_examples_are_python(block: int) -> None:
    ast.parse(PYTHON[block])


def test_the_example_of_a_restricted_space_runs() -> None:
    names: dict[str, object] = {"optuna": optuna}
    exec(next(block for block in PYTHON if "DistinctSampler(optuna" in block and "Space(" in block), names)
    sampler = names["sampler"]
    assert isinstance(sampler, optuna.samplers.BaseSampler)
    study = optuna.create_study(sampler=sampler)
    study.optimize(
        lambda trial: trial.suggest_categorical("block", [32, 64, 128]) * trial.suggest_categorical("warps", [2, 4, 8]),
        n_trials=20,
    )
    seen = [tuple(trial.params.values()) for trial in study.trials]
    assert len(seen) == len(set(seen)) == 6
    assert all(block >= 16 * warps for block, warps in seen)


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
