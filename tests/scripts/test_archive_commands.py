"""`llm-sampler best`, `archive` and `report`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from llm_sampler.kernels import H200, Device, KernelSpec, Problem, find_kernel
from llm_sampler.objectives.gpu import GpuEvaluator
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.scripts.archive import age, t4_name
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.exchange import read_t4
from llm_sampler.studies.merge import merge

Run = Callable[..., tuple[int, str, str]]
URL = "sqlite:///llm-sampler.db"


_archives: dict[str, bytes] = {}


@pytest.fixture
def tuned(package: Path, run: Run) -> Run:
    """An archive with two studies of eight trials each, of both recorded problems of matmul."""
    if not _archives:
        from llm_sampler.objectives.shipped import shipped_recordings

        storage = open_storage(URL)
        for one in shipped_recordings():
            copy = read_t4(one.path)
            failed = [trial for trial in copy.trials if trial.values is None]
            timed = [trial for trial in copy.trials if trial.values is not None]
            entry = dataclasses.replace(copy.entry, recording=one.read().digest())
            merge(storage, [dataclasses.replace(copy, entry=entry, trials=[*timed[:14:2], failed[0]])])
        storage.engine.dispose()
        _archives["tuned"] = Path("llm-sampler.db").read_bytes()
    Path("llm-sampler.db").write_bytes(_archives["tuned"])
    return run


def study_of(part: str, url: str = URL) -> optuna.Study:
    (name,) = (name for name in optuna.get_all_study_names(url) if part in name)
    return optuna.load_study(study_name=name, storage=url)


def test_best_prints_the_best_in_every_form(tuned: Run) -> None:
    best = study_of("M4096-").best_trial
    status, out, err = tuned("best", "matmul")
    assert (status, err) == (0, "")
    assert out.startswith("Exact match: matmul 4096x4096x4096-fp16 on NVIDIA H200.\n")
    assert f"{best.value:.4g} ms, " in out
    assert "best of 8 measured configurations" in out
    held = "2 blocks, 16 warps (25 %), limited by registers"  # 128 registers a thread, 8 warps a block
    assert f"\nA multiprocessor holds {held}.\n" in out
    assert held in tuned("report", "M4096-", "--format", "text")[1]
    assert json.loads(re.search(r"^JSON    (.*)$", out, re.MULTILINE)[1]) == best.params  # type: ignore[index]
    _, out, err = tuned("best", "matmul", "--format", "json")
    data = json.loads(out)
    assert (data["configuration"], data["median_ms"], data["match"], err) == (best.params, best.value, "exact", "")
    assert data["occupancy"] == {"blocks": 2, "warps": 16, "share": 0.25, "limit": "registers"}
    _, out, err = tuned("best", "matmul", "--format", "triton")
    call = ast.parse(out.strip(), mode="eval").body
    assert isinstance(call, ast.Call)
    config = {**ast.literal_eval(call.args[0]), **{k.arg: ast.literal_eval(k.value) for k in call.keywords}}
    assert config == best.params
    assert {keyword.arg for keyword in call.keywords} == {"num_warps", "num_stages"}
    assert err == "# exact match: matmul 4096x4096x4096-fp16 on NVIDIA H200\n"
    _, out, _ = tuned("best", "matmul", "--format", "python")
    statement = next(node for node in ast.parse(out).body if isinstance(node, ast.Assign))
    assert ast.literal_eval(statement.value) == best.params
    assert "kernel.launch(inputs, output, configuration)" in out


def test_best_says_which_problem_and_device_it_took(tuned: Run) -> None:
    _, out, _ = tuned("best", "matmul", "--problem", "16x8192x4096", "--device", "h200")
    assert out.startswith("No measurement of matmul 16x8192x4096-fp16 on NVIDIA H200; nearest problem on that device: ")
    assert "matmul 16x8192x8192-fp16 on NVIDIA H200." in out.splitlines()[0]
    _, out, _ = tuned("best", "matmul", "--device", "NVIDIA L4")
    assert out.startswith("No measurement on NVIDIA L4; same problem on another device: matmul 4096x4096x4096-fp16 on")
    assert json.loads(tuned("best", "matmul", "--device", "L4", "--format", "json")[1])["match"] == "other device"


def test_the_list_shows_what_the_studies_hold(tuned: Run) -> None:
    status, out, _ = tuned("archive", "list")
    assert status == 0
    lines = out.splitlines()
    assert len(lines) == 3
    row = next(line for line in lines if "4096x4096x4096-fp16" in line)
    study = study_of("M4096-")
    assert f"{study.best_value:.4g} ms" in row
    assert study.study_name in row
    assert f"{study.best_trial.user_attrs['kernel:speedup']:.2f}x" in row
    data = json.loads(tuned("archive", "list", "matmul", "--format", "json")[1])
    assert {one["problem"]: one["trials"] for one in data} == {"M4096-N4096-K4096-fp16": 8, "M16-N8192-K8192-fp16": 8}
    assert all(one["schema"] == 1 for one in data)
    assert "holds no study of nothing" in tuned("archive", "list", "nothing")[1]


def test_an_archive_goes_out_and_comes_in_again(tuned: Run) -> None:
    status, out, _ = tuned("archive", "export", "--output", "files")
    assert status == 0
    files = sorted(str(path) for path in Path("files").iterdir())
    assert len(files) == 2
    assert all(path in out for path in files)
    status, out, err = tuned("archive", "import", *files, "--storage", "sqlite:///new.db")
    assert (status, err) == (0, "")
    assert out.count(": 8 trials added\n") == 2
    for part in ("M4096-", "M16-"):
        mine, copied = study_of(part), study_of(part, "sqlite:///new.db")
        assert [(t.params, t.values, t.state) for t in copied.trials] == [
            (t.params, t.values, t.state) for t in mine.trials
        ]
    _, out, _ = tuned("archive", "import", URL, "--storage", "sqlite:///new.db")
    assert out.count(": 0 trials added, 8 were there\n") == 2


def test_one_study_goes_into_one_file_and_under_another_name(tuned: Run) -> None:
    assert tuned("archive", "export", "M4096-", "--output", "one.json")[0] == 0
    assert json.loads(Path("one.json").read_text())["metadata"]["kernel"] == "matmul"
    assert tuned("archive", "import", "one.json", "--name", "again/../x")[0] == 0
    assert "again/../x" in optuna.get_all_study_names(URL)
    # A file of ours is also a recording: of a part of the space, which a replay refuses.
    status, _, err = tuned("tune", "matmul", "--replay", "one.json")
    assert (status, "a replay needs every allowed configuration" in err) == (2, True)


def test_a_new_study_begins_with_what_the_archive_knows(tuned: Run) -> None:
    best = study_of("M4096-").best_trial
    _, out, _ = tuned("tune", "matmul", "--trials", "4")
    assert "Warm start: matmul 4096x4096x4096-fp16 on NVIDIA H200: of 8 measured configurations" in out
    (name,) = (n for n in optuna.get_all_study_names(URL) if "M4096" in n and "recorded" not in n)
    trials = optuna.load_study(study_name=name, storage=URL).trials
    proposers = [trial.user_attrs["llm_sampler:proposed_by"] for trial in trials]
    assert proposers[:2] == ["default", "archive"]
    assert trials[1].params == best.params
    assert "Warm start" not in tuned("tune", "matmul", "--trials", "2", "--cold-start", "--study", "cold")[1]


def test_a_report_is_a_page_a_text_or_json(tuned: Run) -> None:
    status, out, err = tuned("report", "M4096-")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"report\.html: \d\.\d MB\n", out)
    best = study_of("M4096-").best_trial
    assert f"<b>{best.value:.4g} ms</b>" in Path("report.html").read_text()
    _, out, _ = tuned("report", "M4096-", "--format", "text")
    assert f"takes {best.value:.4g} ms" in out
    # The other size's recording stands in for measuring.
    assert "16x8192x8192-fp16" in out
    _, out, _ = tuned("report", "--format", "json")
    assert json.loads(out)["entry"]["problem"]["sizes"] == {"M": 4096, "N": 4096, "K": 4096}
    assert json.loads(out)["optimum_ms"] == pytest.approx(0.1)


def test_a_report_can_measure_the_other_sizes_live(tuned: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    class FakeGpu(ReplayEvaluator):
        """Stands where the GPU's evaluator does, and answers for every problem from one recording."""

        def __init__(self, spec: KernelSpec, problem: Problem, *, device: Device) -> None:
            inspect.signature(GpuEvaluator).bind(spec, problem, device=device)
            measured.append(problem.short)
            super().__init__(find_recording("matmul"))

    monkeypatch.setattr("llm_sampler.objectives.device.detect_device", lambda *_: H200)
    monkeypatch.setattr("llm_sampler.objectives.gpu.GpuEvaluator", FakeGpu)
    status, out, err = tuned("report", "M4096-", "--format", "json", "--live")
    assert (status, err) == (0, "")
    results = json.loads(out)["stability"]["results"]
    others = [problem.short for problem in find_kernel("matmul").problems if problem.name != "M4096-N4096-K4096-fp16"]
    assert [result["problem"] for result in results] == measured == others
    assert {result["source"] for result in results} == {"live"}
    assert json.loads(out)["stability"]["score"] == pytest.approx(1.0)


SECRET = "postgresql://user:hunter2@127.0.0.1:1/archive?password=hunter3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["best", "matmul", "--storage", "sqlite:///none.db"], "there is no archive sqlite:///none.db: tune or import"),
        (["archive", "list", "--storage", "none"], "storage must be a database URL"),
        (["best", "nothing"], "no time of nothing that can be used here; it has: matmul"),
        (["best", "matmul", "--problem", "7"], "problem of matmul must be MxNxK"),
        (["report", "nothing"], "no study has 'nothing' in its name: give one of matmul/"),
        (["report", "matmul"], "2 studies have 'matmul' in its name: give one of matmul/"),
        (["report", "M4096-", "--output", "/nowhere/x.html"], "cannot write /nowhere/x.html: No such file"),
        (["report", "M4096-", "--live"], "--live needs an NVIDIA GPU"),
        (["archive", "import", "none.json"], "cannot read none.json: No such file"),
        (["archive", "import", "/etc/passwd"], "passwd must be JSON"),
        (["archive", "import", URL, "--name", "x"], "--name is for one study, and these are 2"),
        (["archive", "export", "M4096-", "--output", "/proc/x/y"], "cannot make folder /proc/x/y"),
        (["best", "matmul", "--storage", SECRET], "postgresql"),
        (["archive", "list", "--storage", SECRET], "postgresql"),
        (["archive", "import", SECRET], "postgresql"),
        (["report", "--storage", SECRET], "postgresql"),
    ],
)
def test_mistakes_are_one_line_and_status_2(tuned: Run, arguments: list[str], message: str) -> None:
    status, out, err = tuned(*arguments)
    assert status == 2
    assert message in err
    assert err.startswith("llm-sampler: ")
    assert err.count("\n") == 1
    assert "hunter" not in err + out
    assert not Path("none.db").exists()


def test_file_names_of_studies_stay_in_their_folder_and_apart() -> None:
    names = ["../../etc/passwd", "..", "a/b", "a-b", "a b", "x" * 500, "x" * 501, "ä", "con\x00trol", ""]
    files = [t4_name(name) for name in names]
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.json\.gz", file) and len(file) < 210 for file in files)
    assert len({file for name, file in zip(names, files, strict=True) if name not in ("a/b", "a-b")}) == len(names) - 2


def test_ages() -> None:
    import datetime

    ages = [age(datetime.timedelta(seconds=seconds)) for seconds in (-5, 59, 60, 7_199, 7_200, 86_399, 200_000)]
    assert ages == ["0 s", "59 s", "1 min", "1 h", "2 h", "23 h", "2 d"]


def test_a_killed_import_leaves_nothing(package: Path, tmp_path: Path) -> None:
    database = tmp_path / "archive.db"
    code = f"""
import itertools, os, signal
from pathlib import Path
from llm_sampler.studies import merge
from llm_sampler.studies.exchange import read_t4
from llm_sampler.studies.archive import open_storage
counted, identity = itertools.count(), merge.identity
def deadly(trial):
    if next(counted) == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return identity(trial)
merge.identity = deadly
merge.merge(open_storage("sqlite:///{database}"), [read_t4(Path({str(sorted(package.iterdir())[0])!r}))])
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    assert optuna.get_all_study_names(f"sqlite:///{database}") == []


def test_help_tells_how_to_begin(run: Run) -> None:
    for command in (["best"], ["report"], ["archive"], ["archive", "list"], ["archive", "import"]):
        status, out, _ = run(*command, "--help")
        assert status == 0
        assert "Usage" in out
