"""Runs of a comparison in several processes, and the log from which a comparison is taken up again.

Every finished run is one JSON line, written at once. A run that crashes or hangs costs its process, which is replaced,
and is recorded as a failure.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import as_completed
from pathlib import Path

from llm_sampler.json_lines import LinesError, append_line, read_lines
from llm_sampler.studies.compare_arms import parse_arm
from llm_sampler.studies.compare_run import Job, Run, failed_run, run_job, space_digest, timeout_text
from llm_sampler.studies.compare_space import CompareError

# A run notices its own time limit after each trial; only one that hangs within a trial has to be killed.
_GRACE_S = 5.0
# One thread each: processes share the cores, and GPSampler is slower with several (its documentation says why).
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NEEDS = ("scipy", "pebble")


def check_packages() -> None:
    """Check that the packages of a comparison are installed.

    Raises:
        CompareError: They are not.
    """
    if missing := [package for package in NEEDS if importlib.util.find_spec(package) is None]:
        raise CompareError(f"a comparison needs {' and '.join(missing)}: pip install 'optuna-llm-sampler[compare]'")


class RunLog:
    """The finished runs of a comparison.

    Args:
        path: A file of JSON lines; made with the first run.

    Raises:
        CompareError: It is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs: dict[str, Run] = {}
        try:
            for line in read_lines(path) if path.exists() else ():
                run = Run.from_json(line)
                self._runs[run.key] = run
        except LinesError as error:
            raise CompareError(str(error)) from None
        except TypeError:
            raise CompareError(f"{path} holds runs of another version: choose another --output") from None

    def add(self, run: Run) -> None:
        """Keep a finished run."""
        self._runs[run.key] = run
        append_line(self.path, run.to_json())

    def find(self, job: Job) -> Run | None:
        """The run of a job, None if there is none of the same recording and length.

        Raises:
            CompareError: It is of another language model.
        """
        run = self._runs.get(job.key)
        if run is None or run.trials != job.trials or run.digest != space_digest(job.space.load()):
            return None
        asked = job.source.model
        if parse_arm(job.arm).needs_model and asked and run.model and run.model != asked:
            raise CompareError(
                f"{self.path} holds runs of {run.model}, and the model is {asked}: choose another --output"
            )
        return run


def run_all(
    jobs: Sequence[Job],
    log: RunLog,
    *,
    workers: int,
    retry_failed: bool = False,
    on_run: Callable[[Run], None] | None = None,
) -> list[Run]:
    """The runs of all jobs, in the jobs' order; those that the log has are not repeated.

    Args:
        jobs: What to run.
        log: Where finished runs are, and go.
        workers: Processes.
        retry_failed: Whether runs that failed are repeated.
        on_run: Told of each run that was made now.
    """
    found = {job.key: run for job in jobs if (run := log.find(job)) and not (retry_failed and run.failure)}
    # The slow ones first, so that no process waits for the last of them at the end.
    todo = sorted((job for job in jobs if job.key not in found), key=lambda job: not parse_arm(job.arm).is_expensive)
    for run in _run_in_processes(todo, workers=workers):
        log.add(run)
        found[run.key] = run
        if on_run is not None:
            on_run(run)
    return [found[job.key] for job in jobs]


def _run_in_processes(jobs: Sequence[Job], *, workers: int) -> Iterator[Run]:
    if not jobs:
        return
    from pebble import ProcessExpired, ProcessPool

    with _one_thread_each():
        pool = ProcessPool(min(workers, len(jobs)), context=multiprocessing.get_context("spawn"))
        try:
            futures = {pool.schedule(run_job, args=[job], timeout=job.limit_s + _GRACE_S): job for job in jobs}
            for future in as_completed(futures):
                job = futures[future]
                try:
                    yield future.result()
                except FutureTimeoutError:
                    yield failed_run(job, timeout_text(job))
                except ProcessExpired as error:
                    yield failed_run(job, f"ended its process with exit code {error.exitcode}")
        finally:
            pool.stop()
            pool.join()


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
