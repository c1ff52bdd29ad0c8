"""Defaults and random allowed configurations compile for sm_80 and sm_90, without a GPU."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from llm_sampler.kernels import A100, H200, KERNELS, Device, KernelSpec
from llm_sampler.objectives.compile import compile_configuration

pytest.importorskip("triton", reason="compiles with Triton: pip install -e '.[test]'")
RANDOM_CONFIGURATIONS = 6


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.delenv("TRITON_INTERPRET", raising=False)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
            yield executor


@pytest.mark.slow
@pytest.mark.parametrize("device", [A100, H200], ids=lambda device: f"sm_{device.capability}")
@pytest.mark.parametrize("spec", KERNELS.values(), ids=lambda spec: spec.name)
def test_default_and_random_configurations_compile(spec: KernelSpec, device: Device, pool: ProcessPoolExecutor) -> None:
    draw = random.Random(f"{spec.name} {device.name}")
    futures = {}
    for problem in spec.problems:
        space = spec.space(problem, device)
        assert space.default is not None
        configurations = [space.default]
        configurations += draw.sample(list(space.configurations()), -(-RANDOM_CONFIGURATIONS // len(spec.problems)))
        for configuration in configurations:
            futures[pool.submit(compile_configuration, spec, problem, configuration, device)] = configuration
    assert len(futures) >= RANDOM_CONFIGURATIONS
    outcomes = [(future.result(), configuration) for future, configuration in futures.items()]
    assert [(o.detail, c) for o, c in outcomes if o.status != "ok"] == []
    assert all(o.shared_bytes is not None and o.shared_bytes <= device.shared_bytes for o, _ in outcomes)


def test_too_much_shared_memory_says_required_and_limit(pool: ProcessPoolExecutor) -> None:
    spec = KERNELS["matmul"]
    small = dataclasses.replace(H200, shared_bytes=10_000)
    outcome = pool.submit(compile_configuration, spec, spec.problem("64x64x64"), spec.defaults[0], small).result()
    assert outcome.status == "out_of_resources"
    assert outcome.detail == "shared memory: required 24576, limit 10000"


def test_what_the_compiler_refuses_is_a_compile_error(pool: ProcessPoolExecutor) -> None:
    spec = KERNELS["matmul"]
    odd = {**spec.defaults[0], "BLOCK_M": 48}
    outcome = pool.submit(compile_configuration, spec, spec.problem("64x64x64"), odd, H200).result()
    assert outcome.status == "compile_error"
    assert "power of 2" in outcome.detail
