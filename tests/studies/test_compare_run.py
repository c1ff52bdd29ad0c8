from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from llm_sampler.objectives.recording import Recording, write_recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.studies.compare_arms import parse_arm
from llm_sampler.studies.compare_noise import NoisyReplay
from llm_sampler.studies.compare_pool import RunLog, run_all
from llm_sampler.studies.compare_run import MOST_REPEATS, Job, run_job
from llm_sampler.studies.compare_space import CompareError, SpaceFile, find_spaces
from llm_sampler.studies.compare_statistics import ratios
from llm_sampler.studies.compare_summary import compare, comparison_json
from llm_sampler.studies.compare_verdict import judge

ARMS = '''
import os, time
from optuna.samplers import BaseSampler, RandomSampler


class Constant(BaseSampler):
    """Always proposes the first choice."""

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, param_name, param_distribution):
        return param_distribution.choices[0]


class After(RandomSampler):
    def __init__(self, what, at=5, seed=None):
        super().__init__(seed=seed)
        self.what, self.at = what, at

    def sample_relative(self, study, trial, search_space):
        if trial.number >= self.at:
            if self.what == "raise":
                raise RuntimeError("no more, with sk-secret-4711")
            if self.what == "crash":
                os._exit(7)
            time.sleep(600 if self.what == "hang" else 0.4)
        return super().sample_relative(study, trial, search_space)

    def infer_relative_search_space(self, study, trial):
        return {}


def nothing():
    return 3
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "arms_of_a_user.py").write_text(textwrap.dedent(ARMS))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "arms_of_a_user"


@pytest.fixture
def space(toy: Callable[..., Recording], tmp_path: Path) -> SpaceFile:
    path = tmp_path / "toy.json.gz"
    write_recording(path, toy())
    return SpaceFile("toy", path)


def job(space: SpaceFile, arm: str, seed: int = 0, trials: int = 12, **options: Any) -> Job:
    return Job(space, arm, seed, trials, **options)


@pytest.mark.parametrize("arm", ["tpe", "tpe/index", "cmaes", "nsgaii", "random", "exhaustive", "neighbours"])
def test_every_arm_begins_with_the_default_and_measures_nothing_twice(arm: str, space: SpaceFile) -> None:
    run = run_job(job(space, arm))
    assert run.failure == ""
    assert len(set(run.rows)) == len(run.rows) == 12
    assert run.rows[0] == space.load().default_row
    assert run.proposed_by == {"default": 1, arm: 11}
    assert run.asks == sorted(run.asks)
    assert run.asks[-1] >= 12
    assert run.observed_ms == [space.load().times_ms[row] for row in run.rows]
    again = run_job(job(space, arm))
    assert again.to_json(with_clock=False) == run.to_json(with_clock=False)
    assert run_job(job(space, arm, default_first=False)).proposed_by == {arm: 12}


def test_gp_looks_through_the_table_and_needs_no_replacement(space: SpaceFile) -> None:
    run = run_job(job(space, "gp", trials=20))
    assert (run.failure, run.replaced, run.asks[-1]) == ("", 0, 20)
    assert len(set(run.rows)) == 20
    # 78 configurations, each parameter with one slope: ten random ones are enough to see where it goes.
    assert min(ms for ms in run.observed_ms if ms) == space.load().optimum_ms
    assert run_job(job(space, "gp", trials=12)).rows == run.rows[:12]


def test_a_run_on_a_space_that_is_used_up_ends_with_all_of_it(space: SpaceFile) -> None:
    run = run_job(job(space, "random", trials=100))
    assert (run.failure, len(set(run.rows)), len(run.rows)) == ("", 78, 78)


def test_failures_are_charged(space: SpaceFile) -> None:
    run = run_job(job(space, "random", trials=78))
    assert run.observed_ms.count(None) == 2
    assert len(run.simulated_s) == 78


def test_an_arm_that_raises_is_a_recorded_failure_without_secrets(space: SpaceFile, module: str) -> None:
    run = run_job(job(space, f"{module}:After/what=raise"))
    assert run.failure.startswith("raised RuntimeError: no more")
    assert "4711" not in run.failure
    assert len(run.rows) == 5
    for arm, message in ((f"{module}:nothing", "makes a int"), (f"{module}:missing", "importable module:factory")):
        assert message in run_job(job(space, arm)).failure


def test_an_arm_that_proposes_nothing_new_is_a_recorded_failure(space: SpaceFile, module: str) -> None:
    run = run_job(job(space, f"{module}:Constant", trials=70))
    assert run.failure == f"proposed nothing new in {MOST_REPEATS} trials in a row"
    assert len(run.rows) < 70
    assert run.replaced >= MOST_REPEATS


def test_a_slow_arm_keeps_what_it_had_at_its_limit(space: SpaceFile, module: str) -> None:
    run = run_job(job(space, f"{module}:After/what=slow", limit_s=1.0, trials=70))
    assert run.failure == "took longer than its limit of 1 s"
    assert 5 < len(run.rows) < 12


def test_hanging_and_crashing_arms_cost_their_runs_only_and_finished_runs_are_not_repeated(
    space: SpaceFile, module: str, tmp_path: Path
) -> None:
    texts = ["random", f"{module}:After/what=hang", f"{module}:After/what=crash", "neighbours"]
    jobs = [job(space, text, limit_s=2.0 if "hang" in text else 60.0) for text in texts]
    log = RunLog(tmp_path / "out" / "runs.jsonl")
    made: list[str] = []
    runs = run_all(jobs, log, workers=2, on_run=lambda run: made.append(run.arm))
    assert [run.failure for run in runs] == [
        "",
        "took longer than its limit of 2 s",
        "ended its process with exit code 7",
        "",
    ]
    assert sorted(made) == sorted(texts)
    assert len(log.path.read_text().splitlines()) == 4

    with log.path.open("a") as file:
        file.write('{"key": "toy/random/seed-1", "rows": [')  # cut off by a full disk
    more = [*jobs, job(space, "random", seed=1)]
    made.clear()
    again = run_all(more, RunLog(log.path), workers=2, on_run=lambda run: made.append(run.key))
    assert made == ["toy/random/seed-1"]
    assert again[:4] == runs
    assert RunLog(log.path).find(more[-1]) == again[-1]
    # A failed run is repeated when asked, a run of another length or recording always.
    made.clear()
    run_all(jobs[2:3], RunLog(log.path), workers=1, retry_failed=True, on_run=lambda run: made.append(run.arm))
    assert made == [texts[2]]
    assert RunLog(log.path).find(replace(jobs[0], trials=13)) is None


def test_a_file_that_is_no_log_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("not json\n")
    with pytest.raises(CompareError, match="must hold JSON objects"):
        RunLog(tmp_path / "a")
    (tmp_path / "b").write_text('{"other": 1}\n')
    with pytest.raises(CompareError, match="another version"):
        RunLog(tmp_path / "b")


def test_a_finished_study_is_kept_on_request_and_replaces_an_earlier_one(space: SpaceFile, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kept.db"
    for _ in range(2):
        run = run_job(job(space, "random", storage=url))
    study = optuna.load_study(study_name="compare/toy/random/seed-0", storage=url)
    assert [trial.value for trial in study.trials] == run.observed_ms
    assert len(optuna.get_all_study_names(url)) == 1


def test_bootstrap_noise_follows_from_seed_and_configuration_and_regret_from_the_recorded_time(
    toy: Callable[..., Recording], tmp_path: Path
) -> None:
    recording = toy()
    noisy = tuple(
        replace(r, measurement=r.measurement.with_(samples=tuple(r.measurement.median_ms * f for f in (0.8, 1.0, 1.3))))
        if r.measurement.median_ms
        else r
        for r in recording.results
    )
    recording = replace(recording, results=noisy)
    base = ReplayEvaluator(recording)
    times = {seed: NoisyReplay(base, seed).evaluate({"x": 8, "y": 4, "z": "b"}).median_ms for seed in range(200)}
    assert set(times.values()) == {0.8, 1.0, 1.3}
    # The median of 3 of 3 is the middle one with probability 13/27, and each of the others with 7/27.
    assert list(times.values()).count(1.0) == pytest.approx(200 * 13 / 27, abs=25)
    failed = NoisyReplay(base, 0).evaluate({"x": 1, "y": 0, "z": "a"})
    assert failed == base.evaluate({"x": 1, "y": 0, "z": "a"})

    path = tmp_path / "noisy.json.gz"
    write_recording(path, recording)
    space = SpaceFile("noisy", path)
    runs = [run_job(job(space, arm, noise="bootstrap")) for arm in ("random", "random", "tpe")]
    assert runs[0].observed_ms == runs[1].observed_ms
    assert runs[0].observed_ms != [space.load().times_ms[row] for row in runs[0].rows]
    shared = set(runs[0].rows) & set(runs[2].rows)
    told = [dict(zip(run.rows, run.observed_ms, strict=True)) for run in runs]
    assert shared
    assert all(told[0][row] == told[2][row] for row in shared)
    curve = ratios(runs[:1], space.load(), default_first=True)[0]
    optimum = space.load().optimum_ms
    recorded = {round(ms / optimum, 9) for ms in space.load().times_ms if ms}
    assert {round(value, 9) for value in curve} <= recorded


def test_one_sampler_with_different_seeds_is_not_distinguishable_from_itself(space: SpaceFile) -> None:
    runs = [run_job(job(space, "random", seed, trials=5)) for seed in range(48)]
    curves = ratios(runs, space.load(), default_first=True)
    assert len(set(curves[:, -1])) > 5
    rng = np.random.default_rng(0)
    words = []
    for _ in range(200):
        order = rng.permutation(len(runs))
        # After 3 and after 5 measurements: two "spaces" of one sampler.
        halves = {str(t): (curves[order[:24], t - 1], curves[order[24:], t - 1]) for t in (3, 5)}
        words.append(judge("random, one half", "random, the other", 5, halves).overall.word)
    assert words.count("not distinguishable") >= 190


def test_a_comparison_has_every_arm_on_every_space_and_no_clock(space: SpaceFile) -> None:
    runs = [run_job(job(space, arm, seed)) for seed in range(3) for arm in ("random", "tpe", "exhaustive")]
    found = compare(runs, [space.load()], baseline="random")
    assert [arm.arm for arm in found.arms] == ["random", "tpe", "exhaustive"]
    assert {(v.arm, v.baseline, v.count) for v in found.verdicts} == {
        ("tpe", "random", 12),
        ("exhaustive", "random", 12),
    }
    text = comparison_json(found, runs)
    data = json.loads(text)
    assert len(data["runs"]) == 9
    assert "clock" not in text
    assert "cpu" not in text
    shuffled = compare(runs, [space.load()], baseline="random")
    assert comparison_json(shuffled, runs[::-1]) == text
    expected = space.load().random_search(default_first=True).expected_best_ms([12])[0]
    assert found.spaces[0].random[11] == pytest.approx(expected / space.load().optimum_ms)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("best", "a sampler must be one of llm, tpe, random, nsgaii, gp, cmaes, qmc, exhaustive, neighbours"),
        ("tpe/sideways", "tpe takes categorical, index, got 'sideways'"),
        ("llm/index", "llm takes pure, no-source, no-device, no-history, renamed, got 'index'"),
        ("llm/temperature=1", "llm takes share=…, batch=…, simulated=…, got 'temperature'"),
        ("exhaustive/index", "exhaustive takes no switches, got 'index'"),
        ("neighbours/k=3", "neighbours takes no arguments, got 'k'"),
        ("tpe/index/categorical", "give one encoding"),
    ],
)
def test_an_arm_that_cannot_be_is_a_clear_error(text: str, message: str) -> None:
    with pytest.raises(CompareError) as caught:
        parse_arm(text)
    assert message in str(caught.value)


def test_arms_say_their_encoding_and_arguments() -> None:
    assert parse_arm("tpe").description == "TPESampler, categorical"
    assert parse_arm("tpe/index").description == "TPESampler, indices of choices"
    assert parse_arm("gp").description == (
        "GPSampler over the table of free configurations, indices of choices, log times, failures as the worst time"
    )
    assert parse_arm("qmc").description == "QMCSampler, indices of choices, scramble True"
    assert parse_arm("qmc/scramble=false").arguments == {"scramble": False}
    assert parse_arm("nsgaii/population_size=20").options == {"population_size": 20}
    assert parse_arm("llm/renamed/batch=6").description == "LLMSampler, waits for every reply, renamed, batch 6"


def test_spaces_are_found_by_kernel_name_file_and_foreign_pair(tmp_path: Path, space: SpaceFile) -> None:
    assert len(find_spaces([])) >= 4
    assert {one.name.split("-")[0] for one in find_spaces(["softmax"])} == {"softmax"}
    assert find_spaces([str(space.path)])[0].name == "toy"
    t4, t1 = tmp_path / "blur_A4000_T4.json", tmp_path / "blur_T1.json"
    t4.write_text("{}")
    t1.write_text("{}")
    kernel = tmp_path / "blur.cu"
    kernel.write_text("__global__ void blur() {}")
    (beside,) = find_spaces([str(t4)], sources={"": kernel})
    assert (beside.name, beside.t1, beside.source) == ("blur_A4000", t1, "__global__ void blur() {}")
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert find_spaces([f"{t4}:{other}"])[0].t1 == other
    for names, message in ((["nowhere"], "a T4 file or one of"), (["softmax", "softmax"], "must be named once")):
        with pytest.raises(CompareError, match=message):
            find_spaces(names)
