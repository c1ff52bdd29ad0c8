from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from llm_sampler.kernels import H200, KERNELS

Run = Callable[..., tuple[int, str, str]]


def test_it_lists_kernels_parameters_problems_and_recordings(package: Path, run: Run) -> None:
    status, out, err = run("kernels")
    assert (status, err) == (0, "")
    for spec in KERNELS.values():
        assert spec.title in out
        for parameter in spec.parameters:
            assert parameter.name in out
        for problem in spec.problems:
            line = next(line for line in out.splitlines() if line.startswith(f"{problem.short} "))
            assert f"{spec.space(problem, H200).size:,}" in line
    recorded = next(line for line in out.splitlines() if line.startswith("16x8192x8192-fp16 "))
    assert "NVIDIA H200" in recorded
    assert "0.1 ms" in recorded
    assert "0.2 ms" in recorded
    assert "2025-11-30" in recorded


def test_one_kernel_alone(package: Path, run: Run) -> None:
    _, out, _ = run("kernels", "softmax")
    assert "PROGRAMS" in out
    assert "BLOCK_M" not in out


def test_help_imports_neither_optuna_nor_torch() -> None:
    code = (
        "import sys\n"
        "from llm_sampler.scripts.main import main\n"
        "try: main(['tune', '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "assert not {'optuna', 'torch', 'triton', 'openai', 'sqlalchemy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--target-speedup" in done.stdout
