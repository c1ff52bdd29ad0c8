from __future__ import annotations

import dataclasses

import pytest

from llm_sampler.kernels import H200, find_kernel
from llm_sampler.objectives.roofline import impossible, least_possible_ms

MATMUL, SOFTMAX = find_kernel("matmul"), find_kernel("softmax")


def test_the_best_times_that_an_h200_has_shown_are_possible() -> None:
    cube, rows = MATMUL.problem("8192x8192x8192"), SOFTMAX.problem("8192x8192")
    assert impossible(2 * 8192**3 / 990e9, MATMUL.cost(cube), H200, "fp16") == ""  # all of the datasheet's rate
    assert impossible(0.0692, SOFTMAX.cost(rows), H200, "fp16") == ""


def test_half_of_the_work_in_no_time_is_impossible() -> None:
    cube = MATMUL.problem("8192x8192x8192")
    cost = MATMUL.cost(cube)
    said = impossible(cost.flops / 1300e9, cost, H200, "fp16")
    assert "1300 TFLOP/s" in said
    assert "NVIDIA H200" in said
    rows = SOFTMAX.cost(SOFTMAX.problem("131072x1024"))
    assert "is below the" in impossible(rows.traffic_bytes / 8e9 - 0.0133, rows, H200, "fp16")


def test_what_may_stay_in_the_cache_does_not_count() -> None:
    small = SOFTMAX.cost(SOFTMAX.problem("4096x2048"))
    assert small.traffic_bytes < H200.l2_bytes
    assert least_possible_ms(small, H200, "fp16") < 1e-4
    without = dataclasses.replace(H200, l2_bytes=0)
    assert least_possible_ms(small, without, "fp16") == pytest.approx(small.traffic_bytes / 5.04e9)


def test_an_unknown_device_has_no_limit() -> None:
    unknown = dataclasses.replace(H200, peak_tflops={}, peak_tbps=None)
    assert impossible(1e-6, MATMUL.cost(MATMUL.problems[0]), unknown, "fp16") == ""
