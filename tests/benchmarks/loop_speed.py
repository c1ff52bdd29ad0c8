"""How many trials a second the closed loop manages when measuring itself costs it nothing: its own work, and storage.

Configurations are looked up in a recording; each call first waits outside of Python (a compile in another process),
then with a lock (the one measuring process). Not part of the tests (pytest collects ``test_*.py``). Run it with:

    python tests/benchmarks/loop_speed.py [--trials 700] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import optuna

from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.evaluate import WrappedEvaluator
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.space import Configuration
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.loop import Limits, Observer, tune
from llm_sampler.studies.records import TrialRecord
from llm_sampler.studies.samplers import make_sampler
from llm_sampler.studies.tasks import recording_task

COMPILE_S, MEASURE_S = 0.5, 0.05


@dataclass(frozen=True)
class SlowEvaluator(WrappedEvaluator):
    """A recording that takes its time, as a GPU with 14 compile processes does."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def parallel(self) -> int:
        """As on 16 cores."""
        return 16

    def evaluate(self, configuration: Configuration) -> Measurement:
        """Wait side by side, then one at a time."""
        time.sleep(COMPILE_S)
        with self.lock:
            time.sleep(MEASURE_S)
        return self.base.evaluate(configuration)


class Clock(Observer):
    """When each trial was done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_trial(self, record: TrialRecord) -> None:
        """One more."""
        self.times.append(time.perf_counter())


def main() -> None:
    """Tune once, and print the rate over each hundred trials."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=700)
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    recording = find_recording("matmul")
    clock = Clock()
    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(f"sqlite:///{Path(folder) / 'speed.db'}")
        before = time.process_time()
        if options.profile:
            profile.enable()
        started = time.perf_counter()
        tune(
            SlowEvaluator(ReplayEvaluator(recording)),
            recording_task(recording, find_kernel("matmul")),
            storage=storage,
            study_name="speed",
            sampler=make_sampler(options.sampler),
            limits=Limits(trials=options.trials),
            observer=clock,
        )
        profile.disable()
        cpu_s = time.process_time() - before
        storage.engine.dispose()
    marks = [started, *clock.times]
    for first in range(0, len(clock.times), 100):
        last = min(first + 100, len(clock.times))
        rate = (last - first) / (marks[last] - marks[first])
        print(f"trials {first:4}-{last:4}: {rate:5.1f}/s")
    count = len(clock.times)
    print(
        f"{count} trials, {count / (clock.times[-1] - started):.1f}/s, {1e3 * cpu_s / count:.0f} ms of processor each"
    )
    print(f"at most {1 / MEASURE_S:.0f}/s; {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    if options.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(70)


if __name__ == "__main__":
    main()
