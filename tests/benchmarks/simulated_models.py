"""What good and bad advice does to a study.

``python tests/benchmarks/simulated_models.py [--seeds 20] [FILE[:T1] ...]``

Prints, for every recording (the shipped ones, and T4 files given, each with its T1 file after a colon), TPE alone and
`LLMSampler` with simulated models of known quality: mean of best/optimum after so many trials, median number of trials
to 5 % of the optimum, and how many trials were the model's. The last lines are geometric means over the recordings, and
what must hold:

* With the hostile model the mean after 100 trials is at most 3 % above TPE's, for each recording and in the geometric
  mean. Each difference has its standard error; those of hard spaces are 5 % with 20 seeds. A recording fails where the
  difference is more than 3 % by two standard errors, the geometric mean where it is more than 3 %.
* With the oracle the mean after 16 trials is within 5 % of the optimum, for each recording. Beside it stands the share
  of seeds within 5 %: where one configuration alone is so good, 16 draws of the oracle miss it now and then.

The exit status says whether both hold.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import optuna
from numpy.typing import NDArray

from llm_sampler.objectives.recording import Recording, read_recording
from llm_sampler.objectives.shipped import shipped_recordings
from llm_sampler.simulated import QUALITIES, Quality
from llm_sampler.simulation import Course, simulate, summarize
from llm_sampler.space import Space, configuration_key

CHECKPOINTS = (10, 16, 20, 30, 60, 100)
MOST_EXCESS = 0.03
ORACLE_TRIALS = 16
ORACLE_SHARE = 0.05
# A mean over few recordings with one lucky or unlucky study must not be ruined by the first trials' huge ratios.
MOST_RATIO = 50.0
Job = tuple[Space, Mapping[str, float | None], Quality | None, int]
Kind = Quality | None
KINDS: tuple[Kind, ...] = (None, *QUALITIES)


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


def studies(pool: ProcessPoolExecutor, recording: Recording, kind: Kind, seeds: int) -> list[Course]:
    """One study per seed."""
    space = recording.space
    allowed = {configuration_key(configuration) for configuration in space.configurations()}
    costs = {key: measurement.median_ms for key, measurement in recording.by_key.items() if key in allowed}
    return list(pool.map(run, [(space, costs, kind, seed) for seed in range(seeds)], chunksize=5))


def after(courses: Sequence[Course], trials: int) -> NDArray[np.float64]:
    """Best/optimum of each course after so many trials [seeds]; a course that ended earlier counts with its end."""
    return np.array([course.ratios[min(trials, len(course.ratios)) - 1] for course in courses])


def excess(hostile: Sequence[Course], alone: Sequence[Course], trials: int) -> tuple[float, float]:
    """By how much the hostile model's mean is above TPE's, and the standard error of that, both as shares.

    The studies of a seed are not pairs: their draws part with the model's first proposal.
    """
    ours, theirs = after(hostile, trials), after(alone, trials)
    variances = [float(np.var(found, ddof=1)) / len(found) if len(found) > 1 else 0.0 for found in (ours, theirs)]
    return float(ours.mean() / theirs.mean()) - 1.0, float(np.sqrt(sum(variances)) / theirs.mean())


def verdict(found: Mapping[str, Mapping[Kind, Sequence[Course]]]) -> bool:
    """Print what must hold, and say whether it does."""
    last = CHECKPOINTS[-1]
    excesses = {name: excess(courses["hostile"], courses[None], last) for name, courses in found.items()}
    good = True
    print(f"\nthe hostile model after {last} trials, against TPE (at most {MOST_EXCESS:+.0%}):")
    for name, (share, error) in excesses.items():
        holds = share - 2 * error <= MOST_EXCESS
        good &= holds
        print(f"{name:40} {share:+7.1%} ± {error:.1%}{'' if holds else '  TOO MUCH'}")
    # The standard error of a mean of logarithms, for small shares.
    mean = float(np.exp(np.mean([np.log1p(share) for share, _ in excesses.values()]))) - 1.0
    error = float(np.sqrt(sum(error**2 for _, error in excesses.values()))) / len(excesses)
    good &= mean <= MOST_EXCESS
    print(f"{'geometric mean':40} {mean:+7.1%} ± {error:.1%}{'' if mean <= MOST_EXCESS else '  TOO MUCH'}")
    print(
        f"\nthe oracle after {ORACLE_TRIALS} trials, above the optimum (at most {ORACLE_SHARE:.0%}), and seeds within:"
    )
    for name, courses in found.items():
        ratios = after(courses["oracle"], ORACLE_TRIALS)
        holds = float(ratios.mean()) <= 1.0 + ORACLE_SHARE
        good &= holds
        within = float(np.mean(ratios <= 1.0 + ORACLE_SHARE))
        print(f"{name:40} {float(ratios.mean()) - 1.0:7.1%} {within:7.0%}{'' if holds else '  TOO MUCH'}")
    return good


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="T4 files, each with its T1 file after a colon")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    found: dict[str, dict[Kind, list[Course]]] = {}
    print(f"{'':40} {'model':8}", *(f"{checkpoint:>7}" for checkpoint in CHECKPOINTS), "  to 5 %  by model")
    with ProcessPoolExecutor(options.processes) as pool:
        for name, recording in recordings(options.files).items():
            found[name] = {}
            for kind in KINDS:
                found[name][kind] = studies(pool, recording, kind, options.seeds)
                summary = summarize(found[name][kind], CHECKPOINTS)
                within = "-" if summary.within is None else f"{summary.within:.0f}"
                numbers = " ".join(f"{mean:7.3f}" for mean in summary.means)
                print(f"{name:40} {kind or 'none':8} {numbers} {within:>8} {summary.llm_trials:9.1f}", flush=True)
    for kind in KINDS:
        logs = [np.log(summarize(courses[kind], CHECKPOINTS).means) for courses in found.values()]
        print(f"{'geometric mean':40} {kind or 'none':8}", " ".join(f"{x:7.3f}" for x in np.exp(np.mean(logs, axis=0))))
    return 0 if verdict(found) else 1


if __name__ == "__main__":
    sys.exit(main())
