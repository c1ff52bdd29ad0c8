"""What good and bad advice does to a study.

``python tests/benchmarks/simulated_models.py [--seeds 20] [FILE[:T1] ...]``

Prints, for every recording (the shipped ones, and T4 files given, each with its T1 file after a colon), TPE alone and
`LLMSampler` with simulated models of known quality: mean of best/optimum after so many trials, median number of trials
to 5 % of the optimum, and how many trials were the model's. The last lines are geometric means over the recordings.

What must hold after 100 trials: the hostile model's mean at most 3 % above TPE's; and the oracle within 5 % of the
optimum in at most 16 trials. The exit status says whether it does.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import optuna

from llm_sampler.objectives.recording import Recording, read_recording
from llm_sampler.objectives.shipped import shipped_recordings
from llm_sampler.simulated import QUALITIES, Quality
from llm_sampler.simulation import Course, simulate, summarize
from llm_sampler.space import Space, configuration_key

CHECKPOINTS = (10, 16, 20, 30, 60, 100)
# A mean over few recordings with one lucky or unlucky study must not be ruined by the first trials' huge ratios.
MOST_RATIO = 50.0
Job = tuple[Space, Mapping[str, float | None], Quality | None, int]


def recordings(arguments: Iterable[str]) -> dict[str, Recording]:
    """The shipped recordings and the files given, by name."""
    found = {}
    for shipped in shipped_recordings():
        found[shipped.path.name.removesuffix(".json.gz")] = shipped.read()
    for argument in arguments:
        path, _, t1 = argument.partition(":")
        found[os.path.basename(path).removesuffix("_T4.json.gz")] = read_recording(path, t1 or None)  # noqa: PTH119
    return found


def run(job: Job) -> Course:
    """One study."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, costs, quality, seed = job
    course = simulate(space, costs, quality, seed=seed, trials=CHECKPOINTS[-1])
    return Course(tuple(min(ratio, MOST_RATIO) for ratio in course.ratios), course.llm_trials)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="T4 files, each with its T1 file after a colon")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    kinds: tuple[Quality | None, ...] = (None, *QUALITIES)
    means: dict[Quality | None, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
    slowest_oracle = 0
    print(f"{'':40} {'model':8}", *(f"{checkpoint:>7}" for checkpoint in CHECKPOINTS), "  to 5 %  by model")
    with ProcessPoolExecutor(options.processes) as pool:
        for name, recording in recordings(options.files).items():
            costs = {key: measurement.median_ms for key, measurement in recording.by_key.items()}
            space = recording.space
            allowed = {configuration_key(configuration) for configuration in space.configurations()}
            costs = {key: cost for key, cost in costs.items() if key in allowed}
            for kind in kinds:
                jobs: list[Job] = [(space, costs, kind, seed) for seed in range(options.seeds)]
                courses = list(pool.map(run, jobs, chunksize=max(1, options.seeds // options.processes // 2)))
                summary = summarize(courses, CHECKPOINTS)
                means[kind].append(summary.means)
                if kind == "oracle":
                    slowest_oracle = max([slowest_oracle, *(course.first_within(0.05) or 999 for course in courses)])
                within = "-" if summary.within is None else f"{summary.within:.0f}"
                numbers = " ".join(f"{mean:7.3f}" for mean in summary.means)
                print(f"{name:40} {kind or 'none':8} {numbers} {within:>8} {summary.llm_trials:9.1f}", flush=True)
    geometric = {kind: np.exp(np.mean(np.log(np.array(found)), axis=0)) for kind, found in means.items()}
    for kind, found in geometric.items():
        print(f"{'geometric mean':40} {kind or 'none':8}", " ".join(f"{mean:7.3f}" for mean in found))
    excess = geometric["hostile"][-1] / geometric[None][-1] - 1.0
    print(f"hostile after {CHECKPOINTS[-1]} trials: {100 * excess:+.1f} % against TPE (at most +3 %)")
    print(f"oracle within 5 % of the optimum after at most {slowest_oracle} trials (at most 16)")
    return int(excess > 0.03 or slowest_oracle > 16)


if __name__ == "__main__":
    sys.exit(main())
