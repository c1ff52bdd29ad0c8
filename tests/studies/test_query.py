from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.storages import RDBStorage

from llm_sampler.kernels import Problem
from llm_sampler.studies.archive import ArchiveError, existing, reading
from llm_sampler.studies.entry import ENTRY_ATTRIBUTE, SCHEMA, Entry, read_entry, write_entry
from llm_sampler.studies.query import find_best, list_studies, problem_distance, relatives, same_device
from llm_sampler.studies.tables import STUDIES, has_these_tables

Add = Callable[..., optuna.Study]
DEFAULT = {"x": 2, "y": 2, "z": "a"}
FAST = {"x": 8, "y": 4, "z": "b"}
SLOW = {"x": 4, "y": 1, "z": "b"}
NEW, OLD = {"triton": "3.6.0", "driver": "575.57"}, {"triton": "3.4.0", "driver": "575.57"}


def problem(text: str) -> Problem:
    sizes, _, dtype = text.partition("-")
    rows, columns = (int(size) for size in sizes.split("x"))
    return Problem({"rows": rows, "columns": columns}, dtype)


@pytest.fixture
def filled(add_study: Add, storage: RDBStorage) -> RDBStorage:
    add_study("toy", "8x8-fp16", "NVIDIA H200", [(DEFAULT, 12.0, NEW), (SLOW, 3.0, NEW), (FAST, None, NEW)])
    add_study("toy", "16x8-fp16", "NVIDIA H200", [(FAST, 5.0, NEW)])
    add_study("toy", "512x512-fp16", "NVIDIA H200", [(SLOW, 9.0, NEW)])
    add_study("toy", "8x8-fp16", "NVIDIA A100", [(FAST, 7.0, NEW)])
    add_study("toy", "64x8-fp16", "NVIDIA A100", [(FAST, 8.0, NEW)])
    add_study("other", "8x8-fp16", "NVIDIA H200", [(FAST, 0.1, NEW)])
    return storage


@pytest.mark.parametrize(
    ("wanted", "device", "match", "found", "ms"),
    [
        ("8x8-fp16", "nvidia-h200", "exact", "toy 8x8-fp16 on NVIDIA H200", 3.0),
        ("32x8-fp16", "H200", "nearest problem", "toy 16x8-fp16 on NVIDIA H200", 5.0),
        ("256x256-fp16", "H200", "nearest problem", "toy 512x512-fp16 on NVIDIA H200", 9.0),
        ("8x8-bf16", "H200", "nearest problem", "toy 8x8-fp16 on NVIDIA H200", 3.0),
        ("64x8-fp16", "NVIDIA H100", "other device", "toy 64x8-fp16 on NVIDIA A100", 8.0),
        ("128x8-fp16", "NVIDIA H100", "other problem and device", "toy 64x8-fp16 on NVIDIA A100", 8.0),
    ],
)
def test_an_exact_match_comes_first_then_the_device_then_the_problem(
    filled: RDBStorage, wanted: str, device: str, match: str, found: str, ms: float
) -> None:
    answer = find_best(filled.engine, "toy", problem(wanted), device)
    assert (answer.match, answer.entry.title, answer.median_ms) == (match, found, ms)


def test_an_answer_tells_where_it_comes_from(filled: RDBStorage) -> None:
    answer = find_best(filled.engine, "toy", problem("8x8-fp16"), "H200")
    assert answer.configuration == SLOW
    assert (answer.trial, answer.measured, answer.speedup) == (1, 3, 4.0)
    assert answer.reference_speedup == pytest.approx(2 / 3)
    assert answer.study.startswith("toy/rows8-columns8-fp16/NVIDIA-H200/")


def test_what_the_problem_does_not_allow_is_passed_over(filled: RDBStorage) -> None:
    answer = find_best(filled.engine, "toy", problem("8x8-fp16"), "H200", allows=lambda c: c["x"] < 4)
    assert answer.configuration == DEFAULT
    # None of that study: the next nearest.
    answer = find_best(filled.engine, "toy", problem("8x8-fp16"), "H200", allows=lambda c: c["y"] == 4)
    assert (answer.match, answer.entry.title) == ("nearest problem", "toy 16x8-fp16 on NVIDIA H200")


def test_many_that_are_not_allowed_are_passed_over_too(add_study: Add, storage: RDBStorage) -> None:
    study = add_study("toy", trials=[({"x": x, "y": 3, "z": z}, 9.0 - x, NEW) for x in range(1, 8) for z in "ab"])
    answer = find_best(storage.engine, "toy", problem("8x8-fp16"), "H200", allows=lambda c: c["x"] == 1)
    assert (answer.configuration, answer.study) == ({"x": 1, "y": 3, "z": "a"}, study.study_name)


def test_stale_measurements_are_marked_and_not_mixed(add_study: Add, storage: RDBStorage) -> None:
    add_study("toy", trials=[(FAST, 1.0, OLD), (SLOW, 3.0, NEW)])
    answer = find_best(storage.engine, "toy", problem("8x8-fp16"), "H200")
    assert (answer.configuration, answer.stale, answer.faster_stale_ms) == (SLOW, False, 1.0)
    (overview,) = list_studies(storage.engine)
    assert (overview.stale, overview.best_ms) == (1, 3.0)
    # What counts on the device itself are its own versions.
    answer = find_best(storage.engine, "toy", problem("8x8-fp16"), "H200", here=("NVIDIA H200", OLD))
    assert (answer.configuration, answer.stale) == (FAST, False)
    driver = {"triton": "3.6.0", "driver": "580.00"}
    answer = find_best(storage.engine, "toy", problem("8x8-fp16"), "H200", here=("NVIDIA H200", driver))
    assert (answer.median_ms, answer.stale, answer.versions) == (1.0, True, OLD)


def test_a_replay_of_old_measurements_does_not_make_live_ones_stale(add_study: Add, storage: RDBStorage) -> None:
    add_study("toy", trials=[(SLOW, 3.0, NEW)])
    add_study("toy", "16x8-fp16", trials=[(FAST, 1.0, OLD)], recording="0123abcd")
    stale = {overview.entry.title: overview.stale for overview in list_studies(storage.engine) if overview.entry}
    assert stale == {"toy 8x8-fp16 on NVIDIA H200": 0, "toy 16x8-fp16 on NVIDIA H200": 1}


def test_a_list_counts_what_optuna_counts(filled: RDBStorage) -> None:
    optuna.create_study(storage=filled, study_name="somebody's").add_trial(optuna.trial.create_trial(value=1.0))
    found = {overview.name: overview for overview in list_studies(filled.engine)}
    for summary in optuna.get_all_study_summaries(filled):
        overview = found[summary.study_name]
        assert overview.trials == summary.n_trials
        assert overview.best_ms == (summary.best_trial.value if summary.best_trial else None)
    assert found["somebody's"].entry is None
    toy = next(o for o in found.values() if o.entry and o.entry.title == "toy 8x8-fp16 on NVIDIA H200")
    assert (toy.measured, toy.failed, toy.proposers) == (3, 1, {"default": 1, "tpe": 2})
    assert (toy.speedup, toy.reference_speedup) == (4.0, pytest.approx(2 / 3))


def test_an_empty_archive_says_what_it_has(filled: RDBStorage) -> None:
    with pytest.raises(ArchiveError, match=r"no time of nope that can be used here; it has: other 8x8-fp16 on NVIDIA"):
        find_best(filled.engine, "nope", None, "")


def test_relatives_are_the_best_of_each_problem_and_device_nearest_first(filled: RDBStorage) -> None:
    titles = [answer.entry.title for answer in relatives(filled.engine, "toy", problem("8x8-fp16"), "H200")]
    assert titles == [
        "toy 8x8-fp16 on NVIDIA H200",
        "toy 16x8-fp16 on NVIDIA H200",
        "toy 512x512-fp16 on NVIDIA H200",
        "toy 8x8-fp16 on NVIDIA A100",
        "toy 64x8-fp16 on NVIDIA A100",
    ]


def test_distances() -> None:
    one = problem("8x8-fp16")
    assert problem_distance(one, one) == 0
    assert problem_distance(one, problem("16x4-fp16")) == 2
    assert problem_distance(one, problem("8x8-bf16")) == 0.5
    assert problem_distance(one, problem("8x8-fp32")) == 1
    assert problem_distance(one, Problem({"M": 8, "N": 8})) == float("inf")
    assert problem_distance(None, None) == 0
    assert same_device("NVIDIA H200", "nvidia-h200")
    assert not same_device("NVIDIA H200", "NVIDIA H100")


def test_a_study_from_before_entries_is_read_and_kept(add_study: Add, storage: RDBStorage) -> None:
    study = add_study("toy", trials=[(SLOW, 3.0, NEW)], with_entry=False, suffix="replay-0123abcd")
    expected = Entry("toy", problem("8x8-fp16"), "NVIDIA H200", study.study_name.split("/")[3], "0123abcd", schema=0)
    assert read_entry(study.study_name, study.user_attrs) == expected
    assert find_best(storage.engine, "toy", problem("8x8-fp16"), "H200").configuration == SLOW
    write_entry(study, Entry("toy", problem("8x8-fp16"), "NVIDIA H200", expected.digest))
    entry = read_entry(study.study_name, study.user_attrs)
    assert entry is not None
    assert entry.schema == SCHEMA


def test_a_study_of_a_newer_version_is_listed_and_says_what_to_do(add_study: Add, storage: RDBStorage) -> None:
    study = add_study("toy", trials=[(SLOW, 3.0, NEW)])
    study.set_user_attr(ENTRY_ATTRIBUTE, {**study.user_attrs[ENTRY_ATTRIBUTE], "schema": SCHEMA + 1, "new": [1]})
    (overview,) = list_studies(storage.engine)
    assert overview.entry is not None
    assert overview.entry.too_new
    with pytest.raises(ArchiveError, match=r"newer version of this program: pip install --upgrade"):
        find_best(storage.engine, "toy", problem("8x8-fp16"), "H200")
    with pytest.raises(ArchiveError, match=r"schema 2, and this one reads up to 1\); nothing is lost: pip install"):
        write_entry(study, overview.entry)


@pytest.mark.parametrize("opened", [existing, reading])
@pytest.mark.parametrize(
    ("version", "remedy"), [("v3.0.0.d", "optuna storage upgrade --storage"), ("v9.0.0.a", "pip install -U optuna")]
)
def test_an_archive_of_another_optuna_says_what_to_do_and_keeps_everything(
    filled: RDBStorage, url: str, version: str, remedy: str, opened: Callable[[str], Any]
) -> None:
    def stamp(version: str) -> None:
        with filled.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = ?", (version,))

    with filled.engine.connect() as connection:
        before = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    studies = list_studies(filled.engine)
    stamp(version)
    with pytest.raises(ArchiveError, match=remedy) as caught, opened(url):
        pass
    assert "must be a SQLite file" not in str(caught.value)
    stamp(before)
    with reading(url) as engine:
        assert list_studies(engine) == studies


def test_the_tables_are_those_that_optuna_makes(storage: RDBStorage) -> None:
    assert has_these_tables(storage.engine)
    for table in STUDIES.metadata.tables.values():
        made = {column["name"] for column in sqlalchemy.inspect(storage.engine).get_columns(table.name)}
        assert {column.name for column in table.columns} <= made


def test_reading_needs_neither_optunas_models_nor_a_right_to_write(
    filled: RDBStorage, url: str, tmp_path: Path
) -> None:
    """Their imports take longer than the answer. The file is a copy as a user makes one: no journal beside it."""
    with contextlib.closing(sqlite3.connect(str(filled.engine.url.database))) as connection:
        connection.execute(f"VACUUM INTO '{tmp_path}/copy.db'")
    (tmp_path / "copy.db").chmod(0o444)
    program = f"""
import sys
from llm_sampler.studies.archive import reading
from llm_sampler.studies.query import find_best, list_studies, problems_of
with reading("sqlite:///{tmp_path}/copy.db") as engine:
    print(find_best(engine, "toy", problems_of(engine, "toy")[0], "H200").configuration, len(list_studies(engine)))
print([name for name in ("alembic", "optuna.storages._rdb.models", "sqlalchemy.orm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{SLOW} 6\n[]\n"


@pytest.mark.parametrize("opened", [existing, reading])
def test_asking_makes_no_archive(tmp_path: Path, opened: Callable[[str], Any]) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"), opened(f"sqlite:///{tmp_path}/none.db"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [None, 1, "text", [], {}, {"schema": 1, "kernel": 1}, {"problem": {"sizes": 3}}])
def test_a_damaged_entry_hides_no_other_study(add_study: Add, storage: RDBStorage, data: Any) -> None:
    add_study("toy", trials=[(SLOW, 3.0, NEW)])
    add_study("toy", "16x8-fp16", trials=[(FAST, 1.0, NEW)]).set_user_attr(ENTRY_ATTRIBUTE, data)
    assert sorted(overview.entry is None for overview in list_studies(storage.engine)) == [False, True]
    assert find_best(storage.engine, "toy", problem("16x8-fp16"), "H200").configuration == SLOW
