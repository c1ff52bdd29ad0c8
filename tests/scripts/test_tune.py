from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from llm_sampler.kernels import H200, Device, KernelSpec, Problem
from llm_sampler.objectives.gpu import EvaluatorError, GpuEvaluator
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.space import Configuration

Outcome = tuple[int, str, str]
Run = Callable[..., Outcome]
Foreign = tuple[Path, Path]


def trials(path: str = "llm-sampler.db") -> list[optuna.trial.FrozenTrial]:
    storage = f"sqlite:///{path}"
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).get_trials()


def test_without_a_gpu_it_replays_and_says_so_first(package: Path, run: Run) -> None:
    status, out, err = run("tune", "matmul", "--sampler", "tpe", "--trials", "12", "--seed", "1")
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0].startswith("No NVIDIA GPU here: replaying matmul 4096x4096x4096-fp16, ")
    assert lines[0].endswith("recorded on NVIDIA H200, 2025-11-30")
    assert lines[1].startswith("Study matmul/M4096-N4096-K4096-fp16/NVIDIA-H200/")
    assert lines[1].endswith("in sqlite:///llm-sampler.db")
    assert len(trials()) == 12


def test_the_end_shows_times_side_by_side_and_what_next(package: Path, run: Run) -> None:
    _, out, _ = run("tune", "matmul", "--sampler", "tpe", "--trials", "30", "--seed", "1")
    done = trials()
    best = min(t.value for t in done if t.value is not None)
    default = done[0].value
    assert default is not None
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert re.search(rf"default +{default:.4g} ms +\d+ TFLOP/s +1\.00x +{0.2 / default:.2f}x", rows["default"])
    assert re.search(rf"PyTorch +0\.2 ms +687 TFLOP/s +{default / 0.2:.2f}x +1\.00x", rows["PyTorch"])
    assert re.search(rf"best +{best:.4g} ms +\d+ TFLOP/s +{default / best:.2f}x +{0.2 / best:.2f}x", rows["best"])
    assert (
        len(re.findall(r"trial \d+ \(by \w+\)  BLOCK_M=\d+ BLOCK_N=\d+ BLOCK_K=\d+ num_warps=\d+ num_stages=", out))
        == 5
    )
    failed = sum(t.state == optuna.trial.TrialState.PRUNED for t in done)
    assert failed > 0
    assert f"Failed: {failed} (out_of_resources {failed})." in out
    assert "Proposed by: tpe 29, default 1." in out
    assert re.search(r"Recorded optimum of \d+ configurations: 0.1 ms; the best found is", out)
    assert "Next:" in out
    assert "llm-sampler tune matmul --problem 4096x4096x4096-fp16 --sampler tpe --seed 1 --trials 60" in out


def test_the_same_command_continues_the_study_and_a_larger_number_goes_on(package: Path, run: Run) -> None:
    command = ("tune", "matmul", "--sampler", "random", "--trials")
    run(*command, "12")
    _, out, _ = run(*command, "12")
    assert "Continuing: 12 of 12 trials were done before" in out
    assert len(trials()) == 12
    _, out, _ = run(*command, "20")
    assert "Continuing: 12 of 20 trials were done before" in out
    assert len({str(t.params) for t in trials()}) == 20


def test_seeds_and_names_keep_studies_apart(package: Path, run: Run) -> None:
    for options in (("--seed", "1"), ("--seed", "2"), ("--study", "mine"), ()):
        run("tune", "matmul", "--sampler", "random", "--trials", "3", *options)
    names = {name.split("/", 5)[5] for name in optuna.get_all_study_names("sqlite:///llm-sampler.db")}
    assert names == {"random/seed-1", "random/seed-2", "mine", "random"}


def test_a_seed_repeats_a_run(package: Path, run: Run) -> None:
    for name in ("a", "b"):
        run("tune", "matmul", "--sampler", "tpe", "--trials", "14", "--seed", "7", "--storage", f"sqlite:///{name}.db")
    assert [t.params for t in trials("a.db")] == [t.params for t in trials("b.db")]


def test_another_problem_has_its_recording(package: Path, run: Run) -> None:
    status, out, _ = run("tune", "matmul", "--problem", "16x8192x8192", "--sampler", "random", "--trials", "3")
    assert status == 0
    assert "replaying matmul 16x8192x8192-fp16" in out
    assert "TB/s" in out


def test_a_target_is_over_pytorch(package: Path, run: Run) -> None:
    _, out, _ = run(
        "tune", "matmul", "--sampler", "random", "--trials", "400", "--target-speedup", "0.5", "--seed", "3"
    )
    assert "the target speedup is reached" in out
    done = trials()
    assert len(done) < 400
    assert 0.2 / (done[-1].value or 1e9) >= 0.5


def test_seconds_alone_are_the_only_limit(package: Path, run: Run) -> None:
    status, out, _ = run("tune", "matmul", "--sampler", "random", "--timeout", "0.4")
    assert status == 0
    assert "the time is over" in out
    assert len(trials()) > 1


def test_a_file_of_ours_is_replayed(package: Path, run: Run) -> None:
    path = sorted(package.iterdir())[0]
    status, out, _ = run("tune", "matmul", "--replay", str(path), "--sampler", "random", "--trials", "2")
    assert status == 0
    assert out.startswith("Replaying matmul 16x8192x8192-fp16")
    assert run("tune", "matmul", "--replay", "shipped", "--sampler", "random", "--trials", "2")[0] == 0


def test_a_foreign_recording_is_tuned_to_its_end(foreign: Foreign, run: Run) -> None:
    t4, t1 = (str(path) for path in foreign)
    status, out, _ = run("tune", "blurring", "--replay", t4, "--space", t1, "--sampler", "tpe")
    assert status == 0
    assert out.startswith("Replaying blurring, 20 configurations recorded on A4000")
    assert "every allowed configuration is measured" in out
    assert "the best found is the recorded optimum" in out
    assert "Failed: 2 (runtime_error 2)." in out
    assert len(trials()) == 20


def test_a_space_in_which_everything_fails_ends_plainly(foreign: Foreign, run: Run) -> None:
    t4, t1 = foreign
    t4.write_text(t4.read_text().replace('"correct"', '"compile"'))
    status, out, _ = run("tune", "blur", "--replay", str(t4), "--space", str(t1), "--sampler", "tpe")
    assert status == 0
    assert "No configuration has a time yet. Failed: 20 (compile_error 18, runtime_error 2)." in out


def test_without_arguments_the_help_is_shown(run: Run) -> None:
    status, out, err = run()
    assert (status, err) == (0, "")
    assert "kernels" in out


MISTAKES = [
    (("tune",), "Missing argument"),
    (("tune", "matmull"), ", softmax, split_k_matmul, got 'matmull'"),
    (("tune", "matmul", "--problem", "4096"), "problem of matmul must be MxNxK, optionally with -fp16 or -bf16"),
    (("tune", "matmul", "--problem", "7x7x7"), "recorded problems: 16x8192x8192-fp16, 4096x4096x4096-fp16"),
    (("tune", "softmax"), "no recording of softmax; recorded kernels: matmul"),
    (("tune", "matmul", "--storage", "tuning.db"), "must be a database URL such as sqlite:///tuning.db"),
    (("tune", "matmul", "--storage", "postgresql://u:hunter2@h:port/d"), "must be a database URL"),
    (("tune", "matmul", "--storage", "sqlite:////proc/tuning.db"), "in a folder that can be written"),
    (("tune", "matmul", "--storage", "oracle://u:hunter2@h/d"), "sqlite:///tuning.db needs nothing"),
    (("tune", "matmul", "--trials", "0"), "Invalid value for '--trials'"),
    (("tune", "matmul", "--trials", "many"), "Invalid value for '--trials'"),
    (("tune", "matmul", "--timeout", "-1"), "Invalid value for '--timeout'"),
    (("tune", "matmul", "--target-speedup", "0"), "Invalid value for '--target-speedup'"),
    (("tune", "matmul", "--seed", "-1"), "Invalid value for '--seed'"),
    (("tune", "matmul", "--sampler", "best"), "sampler must be one of llm, tpe, random, nsgaii, gp, got 'best'"),
    (("tune", "matmul", "--sampler", "tpe", "--model", "m"), "a model or base URL is for sampler llm"),
    (("tune", "matmul", "--base-url", "localhost:8000"), "base URL must begin with http:// or https://"),
    (("tune", "matmul", "--study", "x" * 500), "a study's name must have at most 512 characters"),
    (("tune", "matmul", "--replay", "none.json"), "cannot read none.json: No such file or directory"),
    (("tune", "matmul", "--replay", "text.json"), "text.json must be JSON"),
    (("tune", "matmul", "--replay", "{t4}"), "does not hold its space: give the T1 file that describes it as well"),
    (("tune", "matmul", "--replay", "{t4}", "--space", "{t4}"), "a T1 file must have ConfigurationSpace"),
    (("tune", "matmul", "--replay", "{t4}", "--space", "none"), "cannot read none"),
    (("tune", "matmul", "--replay", "{t4}", "--space", "{t1}", "--problem", "1x1x1"), "leave --problem out"),
    (("tune", "matmul", "--space", "{t1}"), "give --replay FILE as well"),
    (("tune", "softmax", "--replay", "{ours}"), "records matmul, not softmax"),
    (("tune", "matmul", "--replay", "{ours}", "--problem", "4096x4096x4096"), "records matmul 16x8192x8192-fp16, not"),
    (("tune", "matmul", "--replays", "x"), "No such option: --replays"),
    (("tunes",), "No such command 'tunes'"),
    (("kernels", "conv"), "No such command 'conv'"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(m[0])[:60] for m in MISTAKES])
def test_a_mistake_is_one_line_and_status_2(
    package: Path, foreign: Foreign, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    Path("text.json").write_text("no JSON")
    t4, t1, ours = str(foreign[0]), str(foreign[1]), str(sorted(package.iterdir())[0])
    status, out, err = run(*(argument.format(t4=t4, t1=t1, ours=ours) for argument in arguments))
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("llm-sampler: ")
    assert err.count("\n") == 1
    assert "hunter2" not in err


def test_not_a_number_is_no_limit(package: Path, run: Run) -> None:
    status, _, err = run("tune", "matmul", "--sampler", "tpe", "--timeout", "nan")
    # Whether Typer itself refuses it depends on its version.
    assert re.fullmatch(r"llm-sampler: (Invalid value for '--timeout': .*|seconds must be positive, got nan)\n", err)
    assert status == 2


def test_a_recording_with_a_gap_is_a_mistake(foreign: Foreign, run: Run) -> None:
    t4, t1 = foreign
    t4.write_text(t4.read_text().replace('"block": 320', '"block": 288', 1).replace('"block": 288', '"block": 320', 1))
    text = t4.read_text()
    first, last = text.index("{", text.index("[")), text.index("}, {", text.index("objectives")) + 3
    t4.write_text(text[:first] + text[last:])
    status, out, err = run("tune", "blur", "--replay", str(t4), "--space", str(t1), "--sampler", "tpe")
    assert (status, out) == (2, "")
    assert 'lacks {"block":32,"unroll":0}' in err


def test_a_gpu_without_its_packages_replays_and_names_them(
    package: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_sampler.objectives.device.detect_device", lambda *_: H200)
    monkeypatch.setattr("llm_sampler.scripts.setup.GPU_PACKAGES", ("torch_that_is_not_there",))
    _, out, _ = run("tune", "matmul", "--sampler", "random", "--trials", "2")
    expected = "NVIDIA H200 is here, but not torch_that_is_not_there (pip install 'optuna-llm-sampler[gpu]'): replaying"
    assert out.startswith(expected)


class FakeGpu(ReplayEvaluator):
    """Stands where the GPU's evaluator does, with its parameters; four at once, no reference before the first."""

    parallel = 4
    closed = False

    def __init__(self, spec: KernelSpec, problem: Problem, *, device: Device) -> None:
        inspect.signature(GpuEvaluator).bind(spec, problem, device=device)
        assert device == H200
        super().__init__(find_recording(spec.name, problem))

    def close(self) -> None:
        FakeGpu.closed = True


class LostGpu(FakeGpu):
    def evaluate(self, configuration: Configuration) -> Measurement:
        raise EvaluatorError("the measuring process cannot start on NVIDIA H200: out of memory")


@pytest.fixture
def gpu(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sampler.objectives.device.detect_device", lambda *_: H200)
    monkeypatch.setattr("llm_sampler.scripts.setup.GPU_PACKAGES", ())
    monkeypatch.setattr("llm_sampler.objectives.gpu.GpuEvaluator", FakeGpu)
    monkeypatch.setattr(FakeGpu, "closed", False)


def test_with_a_gpu_it_measures_live_in_another_study(gpu: None, run: Run) -> None:
    status, out, err = run("tune", "matmul", "--sampler", "random", "--trials", "12")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Tuning matmul 4096x4096x4096-fp16 live on NVIDIA H200"
    assert "/replay" not in lines[1]
    assert "Recorded optimum" not in out
    assert len(trials()) == 12
    assert FakeGpu.closed
    assert run("tune", "matmul", "--replay", "shipped", "--trials", "2", "--sampler", "random")[1].startswith(
        "Replaying"
    )
    assert len(optuna.get_all_study_names("sqlite:///llm-sampler.db")) == 2


def test_a_machine_that_cannot_measure_is_one_line_and_status_1(
    gpu: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_sampler.objectives.gpu.GpuEvaluator", LostGpu)
    status, out, err = run("tune", "matmul", "--sampler", "random", "--trials", "3")
    assert status == 1
    assert err == "llm-sampler: the measuring process cannot start on NVIDIA H200: out of memory\n"
    assert "Traceback" not in out
