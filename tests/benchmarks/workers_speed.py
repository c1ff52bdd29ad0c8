"""How many trials a second N replaying workers manage on each storage, and what part of the storage's own ceiling.

The ceiling is Optuna's ask and tell alone, with random sampling, from as many processes on the same storage in the same
run; counted is the time in which all processes work. Measuring costs nothing here, so that what remains is the
program's own work and the storage's. Not part of the tests (pytest collects ``test_*.py``). Run it with:

    python tests/benchmarks/workers_speed.py [--storage postgresql ...] [--workers 1 4 16] [--seconds 20]

It needs PostgreSQL, MariaDB and gRPC for theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.kernels import H200, Problem
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recorded, Recording, write_recording
from llm_sampler.space import Parameter, Space
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.storages import close, open_any

sys.path.append(str(Path(__file__).parents[1] / "support"))
from database_servers import MariaDB, Postgres, fresh_database, running

STORAGES = ("sqlite", "journal", "postgresql", "mariadb", "grpc")
CHOICES = tuple(range(12))
NAMES = ("a", "b", "c", "d")
WORKER = "worker"


def make_recording(folder: Path) -> Path:
    """20,736 configurations of four parameters: more than any run here measures."""
    space = Space(tuple(Parameter(name, CHOICES) for name in NAMES), (), dict.fromkeys(NAMES, 0))
    results = []
    for configuration in space.configurations():
        ms = 1.0 + sum(abs(int(value) - 7) for value in configuration.values())
        results.append(Recorded(configuration, Measurement("ok", median_ms=ms, samples=(ms,))))
    path = folder / "synthetic_T4.json.gz"
    write_recording(path, Recording("matmul", space, tuple(results), Problem({"M": 16, "N": 16, "K": 16}), H200))
    return path


def ask_and_tell(url: str, seconds: float, ready: Path, go: Path) -> None:
    """One process of the ceiling: what Optuna does with a trial, as its documentation writes it."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_any(url)
    study = optuna.load_study(study_name="ceiling", storage=storage, sampler=optuna.samplers.RandomSampler())
    ready.touch()
    while not go.exists():
        time.sleep(0.05)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        trial = study.ask()
        values = [trial.suggest_categorical(name, CHOICES) for name in NAMES]
        study.tell(trial, float(sum(values)))
    close(storage)


def ceiling(url: str, processes: int, seconds: float, folder: Path) -> float:
    """Trials a second of Optuna alone."""
    storage = open_any(url)
    optuna.create_study(storage=storage, study_name="ceiling")
    go, flags = folder / "go", [folder / f"ready{number}" for number in range(processes)]
    arguments = [sys.executable, __file__, "--ask-and-tell", url, "--seconds", str(seconds), "--go", str(go)]
    started = [subprocess.Popen([*arguments, "--ready", str(flag)]) for flag in flags]
    while not all(flag.exists() for flag in flags):
        time.sleep(0.05)
    go.touch()
    for process in started:
        process.wait()
    trials = optuna.load_study(study_name="ceiling", storage=storage).get_trials(deepcopy=False)
    ends = [trial.datetime_complete for trial in trials if trial.datetime_complete is not None]
    close(storage)
    for file in (go, *flags):
        file.unlink()
    return len(ends) / (max(ends) - min(ends)).total_seconds()


def workers(url: str, count: int, seconds: float, recording: Path) -> tuple[float, int]:
    """Trials a second of `tune --workers`, and how many were counted."""
    command = [sys.executable, "-m", "llm_sampler.scripts.main", "tune", "matmul", "--replay", str(recording)]
    command += ["--sampler", "random", "--workers", str(count), "--timeout", str(seconds + count)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "LLM_SAMPLER_STORAGE": url})
    storage = open_any(url)
    name = next(study.study_name for study in storage.get_all_studies() if study.study_name.startswith("matmul/"))
    trials = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
    close(storage)
    begin, end = all_at_work(trials)
    counted = sum(begin < end_of(trial) <= end for trial in trials if trial.state == TrialState.COMPLETE)
    return counted / (end - begin).total_seconds(), counted


def all_at_work(trials: Sequence[FrozenTrial]) -> tuple[datetime.datetime, datetime.datetime]:
    """From when the last worker has ended a trial, until the first has ended its last."""
    ends: dict[str, list[datetime.datetime]] = {}
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            ends.setdefault(trial.user_attrs[WORKER], []).append(end_of(trial))
    return max(min(own) for own in ends.values()), min(max(own) for own in ends.values())


def end_of(trial: FrozenTrial) -> datetime.datetime:
    """When it ended."""
    assert trial.datetime_complete is not None
    return trial.datetime_complete


@contextlib.contextmanager
def addresses(folder: Path, wanted: Sequence[str]) -> Iterator[dict[str, object]]:
    """A maker of empty storages for each kind."""
    with contextlib.ExitStack() as stack:
        found: dict[str, object] = {}
        if "sqlite" in wanted:
            found["sqlite"] = lambda number: contextlib.nullcontext(f"sqlite:///{folder}/{number}.db")
        if "journal" in wanted:
            found["journal"] = lambda number: contextlib.nullcontext(f"journal:///{folder}/{number}.log")
        if {"postgresql", "grpc"} & set(wanted):
            postgres = stack.enter_context(running(Postgres, durable=True)).url()
            found["postgresql"] = lambda _: fresh_database(postgres)
            found["grpc"] = lambda _: proxy(postgres)
        if "mariadb" in wanted:
            mariadb = stack.enter_context(running(MariaDB, durable=True)).url()
            found["mariadb"] = lambda _: fresh_database(mariadb)
        yield {name: found[name] for name in wanted}


@contextlib.contextmanager
def proxy(address: object) -> Iterator[str]:
    """A gRPC proxy, in a process of its own, before an empty database."""
    with fresh_database(address) as url:  # type: ignore[arg-type]
        process = subprocess.Popen(
            [sys.executable, __file__, "--proxy", "0"],
            env={**os.environ, "LLM_SAMPLER_STORAGE": url},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def serve() -> None:
    """The proxy, as docs/scaling.md starts it."""
    from optuna.storages import get_storage
    from optuna.storages._grpc.server import make_server

    server = make_server(get_storage(open_storage(os.environ["LLM_SAMPLER_STORAGE"])), "127.0.0.1", 0)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--storage", nargs="+", default=STORAGES, choices=STORAGES)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=20.0)
    for hidden in ("--ask-and-tell", "--ready", "--go", "--proxy"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask_and_tell:
        ask_and_tell(options.ask_and_tell, options.seconds, Path(options.ready), Path(options.go))
        return
    if options.proxy:
        serve()
        return
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, {options.seconds:g} s each")
    print(
        f"{'storage':<11} {'workers':>7} {'trials/s':>9} {'Optuna alone/s':>15} {'part':>6} {'trials':>7} {'load':>5}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recording = make_recording(folder)
        with addresses(folder, options.storage) as makers:
            for storage, make in makers.items():
                for count in options.workers:
                    with make(f"{storage}-{count}") as url:  # type: ignore[operator]
                        most = ceiling(url, count, options.seconds / 2, folder)
                        rate, counted = workers(url, count, options.seconds, recording)
                    load = os.getloadavg()[0]
                    part = f"{100 * rate / most:.0f} %"
                    print(f"{storage:<11} {count:>7} {rate:>9.1f} {most:>15.1f} {part:>6} {counted:>7} {load:>5.1f}")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
