"""Specs: readable without torch, problems by name, spaces that follow problem and device."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llm_sampler.kernels import A100, H200, KERNELS, KernelError, KernelSpec, find_kernel


@pytest.mark.parametrize("spec", KERNELS.values(), ids=lambda spec: spec.name)
def test_source_is_kernels_and_launcher_only(spec: KernelSpec) -> None:
    assert "tl.store" in spec.source
    assert f"def {spec.launch.__name__}(" in spec.source
    assert "@jit\n" in spec.source
    assert "SPEC =" not in spec.source
    compile(spec.source, spec.name, "exec")


def test_spaces_and_sources_need_neither_torch_nor_triton_nor_optuna() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from llm_sampler.kernels import KERNELS, H200\n"
        "for spec in KERNELS.values():\n"
        "    problem = spec.problems[0]\n"
        "    assert spec.space(problem, H200).size > 100 and spec.source and spec.cost(problem).flops\n"
        "assert not {'optuna', 'openai', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("spec", KERNELS.values(), ids=lambda spec: spec.name)
def test_problems_by_name(spec: KernelSpec) -> None:
    for problem in spec.problems:
        assert spec.problem(problem.name) == spec.problem(problem.short) == problem
    sizes = "x".join("1" if name in spec.flags else "37" for name in spec.size_names)
    assert spec.problem(sizes).dtype == spec.dtypes[0]
    assert [spec.problem(f"{sizes}-{dtype}").dtype for dtype in spec.dtypes] == list(spec.dtypes)
    for wrong in ("", "37", "0x0x0", "axbxc", f"{sizes}-int8", f"{sizes}x1", "-1x2x3", "1e3x2x3"):
        with pytest.raises(KernelError, match=f"problem of {spec.name} must be"):
            spec.problem(wrong)


def test_unknown_kernel_lists_the_known() -> None:
    with pytest.raises(KernelError, match="one of attention, .*, softmax, .*, got 'matmull'"):
        find_kernel("matmull")


def test_descriptors_are_for_compute_capability_9() -> None:
    spec = find_kernel("matmul")
    variants = {c["variant"] for c in spec.space(spec.problems[0], A100).configurations()}
    assert variants == {"pointer"}
    assert len({c["variant"] for c in spec.space(spec.problems[0], H200).configurations()}) == 3


def test_long_rows_start_from_the_online_variant() -> None:
    spec = find_kernel("softmax")
    short, long = (spec.space(spec.problem(text), H200).default for text in ("64x4096", "64x131072"))
    assert short is not None
    assert long is not None
    assert (short["variant"], long["variant"]) == ("one_pass", "online")


def test_cost_of_a_product() -> None:
    spec = find_kernel("matmul")
    cost = spec.cost(spec.problem("2x3x5"))
    assert (cost.flops, cost.traffic_bytes) == (60, 2 * (10 + 15 + 6))
    assert H200.roofline_ms(989.4e12, 0, "fp16") == pytest.approx(1000.0)
    assert H200.roofline_ms(0, 4.8e12, "fp16") == pytest.approx(1000.0)
