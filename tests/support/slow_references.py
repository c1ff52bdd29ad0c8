"""Stands for a compiler of references: it hangs, crashes, refuses or succeeds, by the problem's name."""

from __future__ import annotations

import os
import time

from llm_sampler.kernels.spec import KernelSpec, Problem


def compile_reference(spec: KernelSpec, problem: Problem, mode: str) -> None:
    assert (spec.name, mode) == ("softmax", "default")
    rows = problem.sizes["rows"]
    if rows == 1:
        time.sleep(600)
    elif rows == 2:
        os.abort()
    elif rows == 3:
        raise ValueError("no such\noperation")
