"""How fast the archive answers: an archive of 10,000 trials in 50 studies, and a report of 1,000 trials.

Not part of the tests (pytest collects ``test_*.py``). Each command is its own process, imports included; the best of
five runs counts, since other work on the machine only adds. Run it with:

    python tests/benchmarks/archive_speed.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import optuna
import sqlalchemy

from llm_sampler.kernels import KERNELS, Problem
from llm_sampler.objectives.shipped import shipped_recordings
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.entry import ENTRY_ATTRIBUTE
from llm_sampler.studies.exchange import StudyCopy, read_t4
from llm_sampler.studies.merge import merge

STUDIES, TRIALS, LARGE = 50, 200, 1_000
LIMITS_S = {"best": 1.0, "list": 2.0, "report": 10.0}


def make_archive(path: Path) -> None:
    """50 studies of 200 recorded trials on several problems and devices; beside them one of 1,000 trials."""
    storage = open_storage(f"sqlite:///{path}")
    recordings = [read_t4(one.path) for one in shipped_recordings()]
    first = next(copy for copy in recordings if copy.entry.kernel == "matmul" and len(copy.trials) >= LARGE)
    merge(storage, [dataclasses.replace(first, name="matmul/template/x/y", trials=first.trials[:TRIALS])])
    with storage.engine.begin() as connection:
        for number in range(1, STUDIES):
            _multiply(connection, number)
    names = optuna.get_all_study_names(storage)
    for number, name in enumerate(names):
        study = optuna.load_study(study_name=name, storage=storage)
        entry = first.entry
        problem = Problem({"M": 2 ** (4 + number % 10), "N": 8192, "K": 8192})
        device = f"NVIDIA Device {number // 25}"
        entry = dataclasses.replace(entry, problem=entry.problem if number == 0 else problem, device=device)
        study.set_user_attr(ENTRY_ATTRIBUTE, entry.to_json())
    storage.engine.dispose()


def _multiply(connection: sqlalchemy.Connection, number: int) -> None:
    """Copy study 1 with all its rows: Optuna would need 20 ms a trial."""
    offset = number * 10_000
    tables = ("trials", "trial_params", "trial_values", "trial_user_attributes", "trial_system_attributes")
    studies = ("studies", "study_directions", "study_user_attributes", "study_system_attributes")
    for table in (*studies, *tables):
        columns = [column["name"] for column in sqlalchemy.inspect(connection).get_columns(table)]
        keys = {"trial_id": offset, "study_id": number, columns[0]: 100_000 * number}
        if table in ("studies", "trials"):
            keys[columns[0]] = number if table == "studies" else offset
        chosen = [f"{name} + {keys[name]}" if name in keys else name for name in columns]
        chosen = [f"study_name || '{number}'" if name == "study_name" else name for name in chosen]
        where = f"{columns[0]} <= 9999" if table == "trials" else ""
        first = {"studies": "study_id = 1", "trials": "study_id = 1"}.get(table, "")
        if table in studies[1:]:
            first = "study_id = 1"
        elif not first:
            first = "trial_id <= 9999"
        condition = " AND ".join(filter(None, [where, first]))
        names = ", ".join(columns)
        connection.exec_driver_sql(
            f"INSERT INTO {table} ({names}) SELECT {', '.join(chosen)} FROM {table} WHERE {condition}"
        )


def timed(*arguments: str) -> tuple[float, float]:
    """Seconds that a command takes on the wall and on the processor, the fastest of five runs."""
    runs = []
    for _ in range(5):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "llm_sampler.scripts.main", *arguments], check=True, capture_output=True)
        passed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        runs.append((passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return min(runs)


def main() -> None:
    """Make both archives, time the commands, and fail if one is too slow."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_archive(folder / "many.db")
        copy = next(c for c in map(read_t4, (s.path for s in shipped_recordings())) if len(c.trials) >= LARGE)
        large: StudyCopy = dataclasses.replace(copy, name="large", trials=copy.trials[:LARGE])
        storage = open_storage(f"sqlite:///{folder}/large.db")
        merge(storage, [large])
        storage.engine.dispose()
        many, one = f"sqlite:///{folder}/many.db", f"sqlite:///{folder}/large.db"
        problem = KERNELS["matmul"].problems[0].short
        measured = {
            "best": timed("best", "matmul", "--problem", problem, "--device", "NVIDIA Device 1", "--storage", many),
            "list": timed("archive", "list", "--storage", many),
            "report": timed("report", "large", "--output", str(folder / "report.html"), "--storage", one),
        }
        command = [sys.executable, "-m", "llm_sampler.scripts.main", "archive", "list", "--format", "json"]
        listed = subprocess.run([*command, "--storage", many], check=True, capture_output=True)
        studies = json.loads(listed.stdout)
        size_mb = (folder / "report.html").stat().st_size / 1e6
    print(f"{sum(study['trials'] for study in studies):,} trials in {len(studies)} studies; report {size_mb:.1f} MB")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for command, (seconds, cpu_s) in measured.items():
        print(f"{command:<7} {seconds:5.2f} s ({cpu_s:.2f} s of processor time), at most {LIMITS_S[command]:g} s")
    if any(seconds > LIMITS_S[command] for command, (seconds, _) in measured.items()):
        sys.exit("too slow")


if __name__ == "__main__":
    main()
