"""Occupancy: by hand, in what is stored, and (pytest -m gpu) against what the CUDA driver says."""

from __future__ import annotations

import ctypes
from typing import Any

import optuna
import pytest

from llm_sampler.kernels import H200, find_kernel
from llm_sampler.objectives.device import detect_device
from llm_sampler.objectives.kernel_objective import MEASUREMENT_ATTRIBUTE, KernelObjective
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.occupancy import occupancy, occupancy_of
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.objectives.shipped import find_recording


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "blocks", "limit"),
    [
        (255, 0, 8, 1, "registers"),  # 32 x 255 registers a warp, in units of 256: 8,192; two warps a part
        (168, 0, 4, 3, "registers"),  # 5,376: three warps a part
        (128, 0, 4, 4, "registers"),
        (32, 0, 4, 16, "warps"),
        (32, 0, 1, 32, "blocks"),
        (32, 98_304, 4, 2, "shared memory"),  # 96 KiB and 1 KiB reserved, twice, of 228 KiB
        (32, 232_448, 4, 1, "shared memory"),  # the most a block may have: 227 KiB
        (255, 0, 32, 0, "registers"),  # such a kernel cannot be launched
    ],
)
def test_a_multiprocessor_of_an_h200_holds(
    registers: int, shared_bytes: int, warps: int, blocks: int, limit: str
) -> None:
    found = occupancy(90, registers=registers, shared_bytes=shared_bytes, warps=warps)
    assert found is not None
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * warps
    assert found.share == found.warps / 64


def test_a_small_multiprocessor_holds_fewer() -> None:
    large, small = (occupancy(capability, registers=64, shared_bytes=40_960, warps=4) for capability in (80, 86))
    assert large is not None and small is not None
    assert (large.blocks, small.blocks) == (4, 2)
    assert small.text == "2 blocks, 8 warps (17 %), limited by shared memory"


def test_what_is_unknown_is_none() -> None:
    known = Measurement("ok", 1.0, registers=64, shared_bytes=0)
    assert occupancy_of(known, {"num_warps": 4}, H200.facts()) is not None
    assert occupancy_of(known, {}, H200.facts()) is None
    assert occupancy_of(known, {"num_warps": 4}, {}) is None
    assert occupancy_of(known, {"num_warps": 4}, {"capability": 13}) is None
    assert occupancy_of(known.with_(registers=None), {"num_warps": 4}, H200.facts()) is None
    assert occupancy_of(None, {"num_warps": 4}, H200.facts()) is None


def test_a_study_stores_it_for_old_recordings_too() -> None:
    recording = find_recording("softmax", find_kernel("softmax").problem("8192x8192"))
    assert recording.best is not None
    study = optuna.create_study()
    study.enqueue_trial(recording.best.configuration)
    study.optimize(KernelObjective(ReplayEvaluator(recording)), n_trials=1)
    stored = study.trials[0].user_attrs[MEASUREMENT_ATTRIBUTE]
    held = occupancy(
        90, registers=stored["registers"], shared_bytes=stored["shared_bytes"], warps=study.best_params["num_warps"]
    )
    assert held is not None
    assert (stored["blocks_per_sm"], stored["warps_per_sm"]) == (held.blocks, held.warps)


@pytest.mark.gpu
def test_it_is_what_the_driver_says() -> None:
    import torch
    import triton

    device = detect_device()
    assert device is not None, "needs an NVIDIA GPU"
    properties = torch.cuda.get_device_properties()
    limits = device.limits
    assert limits is not None
    assert 32 * limits.max_warps == properties.max_threads_per_multi_processor
    assert limits.shared_bytes == properties.shared_memory_per_multiprocessor
    loaded: list[tuple[int, int, int]] = []
    utils = triton.runtime.driver.active.utils
    load: Any = utils.load_binary

    def load_and_note(name: str, binary: bytes, shared_bytes: int, index: int) -> Any:
        found = load(name, binary, shared_bytes, index)
        loaded.append((found[1], found[2], shared_bytes))
        return found

    driver = ctypes.CDLL("libcuda.so.1")
    compared = set()
    utils.load_binary = load_and_note
    try:
        for kernel, problem in (("matmul", "512x512x512"), ("softmax", "1024x1024")):
            spec = find_kernel(kernel)
            one = spec.problem(problem)
            inputs = spec.make_inputs(one, 1, "cuda")
            for configuration in list(spec.space(one, device).configurations())[::171][:12]:
                loaded.clear()
                spec.launch(inputs, spec.make_output(inputs), configuration)
                warps = int(configuration["num_warps"])
                for function, registers, shared_bytes in loaded:
                    blocks = ctypes.c_int()
                    status = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                        ctypes.byref(blocks), ctypes.c_void_p(function), 32 * warps, ctypes.c_size_t(shared_bytes)
                    )
                    ours = occupancy(device.capability, registers=registers, shared_bytes=shared_bytes, warps=warps)
                    assert status == 0
                    assert ours is not None
                    assert ours.blocks == blocks.value, (configuration, registers, shared_bytes)
                    compared.add(ours.limit)
    finally:
        utils.load_binary = load
    assert len(compared) > 1
