from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from llm_sampler import DistinctSampler
from llm_sampler.kernels import H200
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recorded, Recording, RecordingError, read_recording, write_recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Parameter, Space, SpaceError
from llm_sampler.studies.archive import ArchiveError, open_storage
from llm_sampler.studies.entry import ENTRY_ATTRIBUTE, Entry
from llm_sampler.studies.exchange import StudyCopy, copies_of, copy_study, read_t4, write_t4
from llm_sampler.studies.loop import Limits, tune
from llm_sampler.studies.merge import merge
from llm_sampler.studies.trials import identity
from llm_sampler.task import Task

Add = Callable[..., optuna.Study]
DEFAULT = {"x": 2, "y": 2, "z": "a"}
FAST = {"x": 8, "y": 4, "z": "b"}
FAILS = {"x": 1, "y": 0, "z": "a"}
NEW = {"triton": "3.6.0"}


@pytest.fixture
def study(storage: RDBStorage, evaluator: ReplayEvaluator, task: Task) -> optuna.Study:
    """Twelve trials and failures, a lost one, one that breaks a restriction, a repeated and a waiting one."""
    entry = Entry("toy", None, "Toy GPU", evaluator.space.digest())
    sampler = DistinctSampler(optuna.samplers.RandomSampler(seed=0))
    tune(evaluator, task, storage=storage, study_name="s", sampler=sampler, limits=Limits(trials=12), entry=entry)
    study = optuna.load_study(study_name="s", storage=storage)
    distributions = study.trials[0].distributions
    lost = optuna.trial.create_trial(
        state=TrialState.FAIL, params={"x": 3}, distributions={"x": distributions["x"]}, user_attrs={"worker": "host:1"}
    )
    restricted = optuna.trial.create_trial(
        state=TrialState.PRUNED,
        params={"x": 8, "y": 0, "z": "a"},
        distributions=distributions,
        user_attrs={"kernel:status": "restricted", "kernel:measurement": {"status": "restricted", "detail": "no"}},
        constraints={"kernel:failed": 1.0},
    )
    repeated = next(trial for trial in study.trials if trial.state == TrialState.COMPLETE)
    repeated.values = [repeated.values[0] + 1 / 3]
    measurement = repeated.user_attrs["kernel:measurement"]
    repeated.user_attrs["kernel:measurement"] = {**measurement, "median_ms": repeated.values[0], "samples": [1 / 3]}
    study.add_trials([lost, restricted, repeated])
    study.enqueue_trial({"x": 5, "y": 1, "z": "b"})
    return study


def told(trial: FrozenTrial) -> dict[str, Any]:
    """All of a trial but its identifiers and its worker's host."""
    attributes = {name: value for name, value in trial.user_attrs.items() if name.startswith(("kernel:", "llm_"))}
    return {
        "state": trial.state,
        "values": trial.values,
        "params": trial.params,
        "distributions": trial.distributions,
        "attributes": attributes,
        "constraints": trial.constraints,
        "dates": (trial.datetime_start, trial.datetime_complete),
    }


def finished(study: optuna.Study) -> list[dict[str, Any]]:
    return [told(trial) for trial in study.get_trials() if trial.state.is_finished()]


@pytest.mark.parametrize("name", ["s.json", "s.json.gz"])
def test_export_and_import_give_the_same_trials(study: optuna.Study, tmp_path: Path, name: str) -> None:
    write_t4(tmp_path / name, copy_study(study))
    other = open_storage(f"sqlite:///{tmp_path}/other.db")
    (merged,) = merge(other, [read_t4(tmp_path / name)])
    assert (merged.name, merged.added, merged.present, merged.created) == ("s", 15, 0, True)
    copied = optuna.load_study(study_name="s", storage=other)
    assert finished(copied) == finished(study)
    assert {n: v for n, v in copied.user_attrs.items() if not n.startswith("worker")} == {
        n: v for n, v in study.user_attrs.items() if not n.startswith("worker")
    }
    assert copied.metric_names == ["median_ms"]
    # And once more, from file and from archive: nothing is added twice.
    for copies in ([read_t4(tmp_path / name)], list(copies_of(study._storage._backend))):  # type: ignore[attr-defined]
        assert [(m.added, m.present, m.created) for m in merge(other, copies)] == [(0, 15, False)]
    other.engine.dispose()


def test_an_export_names_no_host(study: optuna.Study, tmp_path: Path) -> None:
    write_t4(tmp_path / "s.json", copy_study(study))
    assert "worker" not in (tmp_path / "s.json").read_text()


def test_an_export_is_a_recording_that_replays(study: optuna.Study, tmp_path: Path) -> None:
    write_t4(tmp_path / "s.json.gz", copy_study(study))
    recording = read_recording(tmp_path / "s.json.gz")
    assert recording.kernel == "toy"
    assert recording.best is not None
    assert recording.best.measurement.median_ms == pytest.approx(study.best_value)
    assert recording.best.configuration == study.best_params


def test_archives_merge_without_duplicates_and_keep_different_measurements(
    add_study: Add, storage: RDBStorage, tmp_path: Path
) -> None:
    study = add_study("toy", trials=[(DEFAULT, 12.0, NEW), (FAST, 1.0, NEW), (FAILS, None, NEW)])
    add_study("toy", "16x8-fp16", trials=[(DEFAULT, 3.0, NEW)])
    other = open_storage(f"sqlite:///{tmp_path}/other.db")
    assert [m.added for m in merge(other, copies_of(storage))] == [3, 1]
    # The same configuration measured there again is another measurement; a failure again is nothing new.
    again = study.trials[1]
    again.values = [1.125]
    again.user_attrs["kernel:measurement"] = {**again.user_attrs["kernel:measurement"], "median_ms": 1.125}
    there = optuna.load_study(study_name=study.study_name, storage=other)
    there.add_trials([again, study.trials[2]])
    assert [(m.added, m.present) for m in merge(storage, copies_of(other))] == [(1, 4), (0, 1)]
    merged = optuna.load_study(study_name=study.study_name, storage=storage)
    assert [trial.value for trial in merged.trials] == [12.0, 1.0, None, 1.125]
    other.engine.dispose()


def test_a_recording_becomes_a_study(recording: Recording, storage: RDBStorage, tmp_path: Path) -> None:
    write_recording(tmp_path / "r.json.gz", recording)
    (merged,) = merge(storage, [read_t4(tmp_path / "r.json.gz")])
    assert merged.name == f"toy/any-problem/Toy-GPU/{recording.space.digest()}/recorded-{recording.digest()}"
    study = optuna.load_study(study_name=merged.name, storage=storage)
    assert len(study.trials) == len(recording.results) == 78
    assert study.trials[0].params == DEFAULT
    assert recording.best is not None
    assert (study.best_params, study.best_value) == (recording.best.configuration, 1.0)
    assert study.best_trial.user_attrs["kernel:speedup"] == 12.0
    assert {t.user_attrs["llm_sampler:proposed_by"] for t in study.trials} == {"archive"}
    assert sum(t.state == TrialState.PRUNED for t in study.trials) == recording.by_status["out_of_resources"]


class StopAfter(list[FrozenTrial]):
    """Trials of which the last is Ctrl-C."""

    def __iter__(self) -> Any:
        yield from list.__iter__(self)
        raise KeyboardInterrupt


def test_an_interrupted_import_leaves_the_archive_as_it_was(
    study: optuna.Study, add_study: Add, tmp_path: Path
) -> None:
    copy = copy_study(study)
    other = open_storage(f"sqlite:///{tmp_path}/other.db")
    merge(other, [StudyCopy("kept", copy.entry, copy.task, copy.trials[:5])])
    before = [told(trial) for trial in optuna.load_study(study_name="kept", storage=other).trials]
    interrupted = StudyCopy("new", copy.entry, copy.task, StopAfter(copy.trials))
    with pytest.raises(KeyboardInterrupt):
        merge(other, [StudyCopy("kept", copy.entry, copy.task, copy.trials), interrupted])
    assert optuna.get_all_study_names(other) == ["kept"]
    assert [told(trial) for trial in optuna.load_study(study_name="kept", storage=other).trials] == before
    # The storage is usable as before, and the import can be done again.
    assert [m.added for m in merge(other, [StudyCopy("kept", copy.entry, copy.task, copy.trials)])] == [10]
    optuna.load_study(study_name="kept", storage=other).enqueue_trial(FAST)
    other.engine.dispose()


def test_another_space_under_the_same_name_is_refused_and_nothing_is_added(
    study: optuna.Study, toy: Callable[..., Recording], storage: RDBStorage, tmp_path: Path
) -> None:
    copy = copy_study(study)
    other = open_storage(f"sqlite:///{tmp_path}/other.db")
    write_recording(tmp_path / "r.json", Recording("toy", toy().space, toy().results[:0], device="Toy GPU"))
    narrow = read_t4(tmp_path / "r.json")
    space = type(copy.task.space)(copy.task.space.parameters, (), DEFAULT)
    merge(other, [StudyCopy("s", narrow.entry, type(copy.task)("toy", space), ())])
    with pytest.raises(ArchiveError, match=r"another space here .* give the imported one another --name"):
        merge(other, [StudyCopy("first", copy.entry, copy.task, copy.trials), copy])
    assert optuna.get_all_study_names(other) == ["s"]
    other.engine.dispose()


def test_a_newer_file_is_refused_with_the_remedy(study: optuna.Study, tmp_path: Path) -> None:
    study.set_user_attr(ENTRY_ATTRIBUTE, {**study.user_attrs[ENTRY_ATTRIBUTE], "schema": 99})
    with pytest.raises(ArchiveError, match="pip install --upgrade optuna-llm-sampler"):
        copy_study(study)


def test_identities_of_copies_are_equal(study: optuna.Study) -> None:
    marks = [identity(trial) for trial in study.trials if trial.state.is_finished()]
    assert len(set(marks)) == len(marks) == 15


def spoil(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        document = document[step]
    document[path[-1]] = value


DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
FIRST = ("results", 0)
VALUES: list[Any] = [
    None,
    7,
    -1,
    1e999,
    10**400,
    "../../etc/passwd",
    "x" * 70_000,
    [],
    [1],
    {},
    {"a": DEEP},
    DEEP,
    True,
]
PLACES: list[tuple[Any, ...]] = [
    ("metadata",),
    ("results",),
    FIRST,
    *((*FIRST, name) for name in ("configuration", "times", "invalidity", "measurements", "objectives", "trial")),
    (*FIRST, "configuration", "x"),
    (*FIRST, "times", "runtimes"),
    (*FIRST, "measurements", 0),
    (*FIRST, "measurements", 0, "value"),
    *(
        (*FIRST, "trial", name)
        for name in ("number", "state", "value", "started", "ended", "attributes", "constraints")
    ),
    (*FIRST, "trial", "attributes", "kernel:measurement"),
    (*FIRST, "trial", "attributes", "kernel:status"),
    (*FIRST, "trial", "attributes", "llm_sampler:rationale"),
    (*FIRST, "trial", "constraints", "kernel:failed"),
    *(("metadata", name) for name in ("kernel", "problem", "device", "space", "versions", "date", "method", "archive")),
    *(("metadata", "space", name) for name in ("parameters", "restrictions", "default", "facts")),
    ("metadata", "space", "parameters", 0),
    *(("metadata", "space", "parameters", 0, name) for name in ("name", "choices", "meaning")),
    *(("metadata", "archive", name) for name in ("study", "entry", "task", "attributes", "more")),
    *(("metadata", "archive", "entry", name) for name in ("schema", "kernel", "problem", "device", "space")),
    *(("metadata", "archive", "task", name) for name in ("title", "space", "device", "problem")),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export of a study of three trials."""
    folder = tmp_path_factory.mktemp("good")
    space = Space((Parameter("x", (1, 2, 3)),), (), {"x": 1})
    results = [Recorded({"x": x}, Measurement("ok", median_ms=1.0 / x, samples=(1.0 / x,))) for x in (1, 2, 3)]
    write_recording(folder / "r.json", Recording("toy", space, tuple(results), device=H200, versions=NEW))
    write_t4(folder / "good.json", read_t4(folder / "r.json"))
    return (folder / "good.json").read_text()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RDBStorage]:
    """An archive for everything that was accepted."""
    storage = open_storage(f"sqlite:///{tmp_path_factory.mktemp('crowd')}/archive.db")
    yield storage
    storage.engine.dispose()


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_crafted_file_is_one_clear_error_or_harmless(
    good: str, crowd: RDBStorage, tmp_path: Path, place: tuple[Any, ...]
) -> None:
    refused = 0
    accepted = []
    for value in VALUES:
        document = json.loads(good)
        spoil(document, place, value)
        (tmp_path / "bad.json").write_text(json.dumps(document))
        try:
            accepted.append(read_t4(tmp_path / "bad.json"))
        except (ArchiveError, RecordingError, SpaceError) as error:
            refused += 1
            assert len(str(error)) < 1_000
    assert refused or place[-1] in ("meaning", "date", "title", "method", "versions", "facts")
    copies = [replace(copy, name=f"{place} {number}") for number, copy in enumerate(accepted)]
    merge(crowd, copies)
    for copy in copies:
        again = copy_study(optuna.load_study(study_name=copy.name, storage=crowd))
        assert len(again.trials) == len(copy.trials)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be JSON"),
        (b"[1]", "must hold a JSON object"),
        (b"{" * 100_000, "must be JSON"),
        (b'{"metadata": {}, "results": ' + b"[" * 100_000, "must be JSON"),
        (b'{"metadata": {}, "results": []}', "must be a T4 file with metadata and results"),
        (b"\x1f\x8b\x08\x00not gzip", "damaged"),
        (b'{"metadata": {}, "results": [{}]}', "does not hold its space: give the T1 file"),
    ],
)
def test_what_is_no_t4_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(RecordingError, match=message):
        read_t4(tmp_path / "bad.json")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_sampler.objectives.recording._MOST_BYTES", 2**20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * (2**20 + 1)))
    with pytest.raises(RecordingError, match="must unpack to at most 1 MiB"):
        read_t4(tmp_path / "bomb.json.gz")
