"""The evaluator against `triton.autotune` over the same configurations, on this machine's GPU; fresh compile caches.

matmul's pointer variant, fp16, configurations drawn at random from the allowed ones. Triton compiles and times them one
after the other; the evaluator compiles in parallel processes, checks each against float64, and times in another
process. Both winners are timed side by side at the end. Needs a GPU. Run it with:

    python tests/benchmarks/autotune_speed.py [--configurations 200] [--problem 4096x4096x4096]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llm_sampler.kernels import find_kernel
from llm_sampler.kernels.spec import Problem
from llm_sampler.objectives.device import detect_device
from llm_sampler.objectives.gpu import GpuEvaluator
from llm_sampler.space import Configuration

SPEC = find_kernel("matmul")
_BLOCKS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")


@contextlib.contextmanager
def fresh_cache() -> Iterator[None]:
    """An empty compile cache."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="autotune-speed-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        yield
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before


def by_evaluator(problem: Problem, configurations: list[Configuration], warm: Configuration) -> Configuration:
    """The evaluator's winner; prints how long it took with and without the start of its processes."""
    device = detect_device()
    assert device is not None
    evaluator = GpuEvaluator(SPEC, problem, device=device)
    with contextlib.closing(evaluator), ThreadPoolExecutor(evaluator.parallel) as threads:
        started = time.perf_counter()
        list(threads.map(evaluator.evaluate, [warm] * evaluator.parallel))
        ready = time.perf_counter()
        measurements = list(threads.map(evaluator.evaluate, configurations))
        ended = time.perf_counter()
    statuses = dict(collections.Counter(one.status for one in measurements))
    print(
        f"evaluator: {len(configurations)} in {ended - ready:.1f} s ({len(configurations) / (ended - ready):.1f}/s), "
        f"with the start of its processes {ended - started:.1f} s; {statuses}"
    )
    timed = [(one.median_ms, index) for index, one in enumerate(measurements) if one.median_ms is not None]
    median_ms, index = min(timed)
    print(f"evaluator's winner: {median_ms:.4f} ms, {configurations[index]}")
    return configurations[index]


def by_autotune(problem: Problem, configurations: list[Configuration]) -> Configuration:
    """Triton's winner; prints how long it took."""
    import torch
    import triton

    from llm_sampler.kernels.matmul import matmul_pointer

    a, b = SPEC.make_inputs(problem, 1, "cuda")
    c = SPEC.make_output((a, b))
    (m, k), n = a.shape, b.shape[1]
    configs = [
        triton.Config(
            {name: one[name] for name in _BLOCKS} | {"EVEN_K": k % int(one["BLOCK_K"]) == 0},
            num_warps=one["num_warps"],
            num_stages=one["num_stages"],
        )
        for one in configurations
    ]
    tuner: Any = triton.autotune(configs=configs, key=["M", "N", "K"])(matmul_pointer.kernel)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    torch.cuda.synchronize()
    started = time.perf_counter()
    tuner[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
    torch.cuda.synchronize()
    took_s = time.perf_counter() - started
    best = configs.index(tuner.best_config)
    print(f"triton.autotune: {len(configs)} in {took_s:.1f} s; winner {configurations[best]}")
    return configurations[best]


def compare(problem: Problem, winners: dict[str, Configuration]) -> None:
    """Time both winners and PyTorch in rounds."""
    import numpy as np

    from llm_sampler.objectives.timing import time_rounds

    inputs = SPEC.make_inputs(problem, 1, "cuda")
    output = SPEC.make_output(inputs)

    def launcher(configuration: Configuration) -> Any:
        return lambda: SPEC.launch(inputs, output, configuration)

    launches = [*map(launcher, winners.values()), lambda: SPEC.reference(*inputs)]
    for launch in launches:
        launch()
    medians = np.median(time_rounds(launches, rounds=100), axis=0)
    print("side by side:", ", ".join(f"{n} {ms:.4f} ms" for n, ms in zip([*winners, "PyTorch"], medians, strict=True)))


def main() -> None:
    """Both, and the ratio of their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=200)
    parser.add_argument("--problem", default="4096x4096x4096")
    arguments = parser.parse_args()
    device = detect_device()
    if device is None:
        parser.exit(1, "needs an NVIDIA GPU\n")
    problem = SPEC.problem(arguments.problem)
    space = SPEC.space(problem, device)
    allowed = [one for one in space.configurations() if one["variant"] == "pointer"]
    random.Random(0).shuffle(allowed)
    chosen, warm = allowed[: arguments.configurations], allowed[arguments.configurations]
    winners = {}
    with fresh_cache():
        winners["evaluator's"] = by_evaluator(problem, chosen, warm)
    with fresh_cache():
        winners["triton.autotune's"] = by_autotune(problem, chosen)
    with fresh_cache():
        compare(problem, winners)


if __name__ == "__main__":
    main()
