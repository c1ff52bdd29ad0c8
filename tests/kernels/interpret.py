"""Runs cases in Triton's interpreter: JSON cases on standard input, their deviations on standard output.

A process of its own, because Triton decides at import whether it interprets or compiles.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.verify import deviation, deviation_limit


def run(case: dict) -> dict:
    spec = find_kernel(case["kernel"])
    problem = spec.problem(case["problem"])
    inputs = spec.make_inputs(problem, seed=7, device="cpu")
    if case.get("layout") == "transposed":
        inputs = tuple(tensor.t().contiguous().t() for tensor in inputs)
    if case.get("layout") == "strided":
        inputs = tuple(torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in inputs)
    if case.get("values") == "infinities":
        inputs[0][0, :] = float("-inf")
        inputs[0][1, : inputs[0].shape[1] // 2 + 1] = float("-inf")
        inputs[0][2, 1:] = float("-inf")
    output = spec.make_output(inputs)
    if case.get("layout") == "transposed":
        output = output.t().contiguous().t()
    output.fill_(float("nan"))
    spec.launch(inputs, output, case["configuration"])
    exact = spec.reference(*(tensor.double() for tensor in inputs))
    limit = deviation_limit(deviation(spec.reference(*inputs), exact), output.dtype)
    return {"deviation": deviation(output, exact), "limit": limit}


if __name__ == "__main__":
    json.dump([run(case) for case in json.load(sys.stdin)], sys.stdout)
