"""Every kernel and variant against float64, on sizes that no block divides, in Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_sampler.kernels import H200, find_kernel

pytest.importorskip("triton", reason="runs the kernels in Triton's interpreter: pip install -e '.[test]'")


def matmul(
    problem: str, variant: str, block: tuple[int, int, int], layout: str = "", group: int = 8, parts: int = 1
) -> dict[str, Any]:
    sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    options = {"GROUP_M": group, "num_warps": 4, "num_stages": 3, "EPILOGUE_PARTS": parts, "variant": variant}
    return {"kernel": "matmul", "problem": problem, "layout": layout, "configuration": {**sizes, **options}}


def softmax(
    problem: str, variant: str, rows: int, block: int = 0, values: str = "", layout: str = ""
) -> dict[str, Any]:
    options = {"num_warps": 4, "num_stages": 2 if variant != "one_pass" else 1, "PROGRAMS": 1}
    configuration = {"variant": variant, "ROWS": rows, "BLOCK_N": block, **options}
    return {
        "kernel": "softmax",
        "problem": problem,
        "values": values,
        "layout": layout,
        "configuration": configuration,
    }


CASES = [
    # The interpreter multiplies bf16 blocks by their bits (Triton 3.9): bf16 products are checked on a GPU only.
    matmul("100x130x70", "pointer", (64, 64, 32)),
    matmul("37x53x29", "pointer", (16, 32, 32)),
    matmul("1x1x1", "pointer", (16, 32, 32)),
    matmul("300x70x64", "pointer", (32, 32, 64), group=1),
    matmul("150x140x97", "pointer", (128, 64, 32), layout="transposed"),
    matmul("65x33x100", "pointer", (32, 64, 64), layout="strided"),
    *(
        matmul(problem, variant, block, group=group, parts=parts)
        for variant in ("descriptor", "descriptor_flat")
        for parts in (1, 2)
        for problem, block, group in (
            ("100x136x72", (64, 64, 32), 8),
            ("70x200x136", (32, 64, 64), 8),
            ("37x64x40", (16, 32, 32), 1),
        )
    ),
    *(softmax(f"37x777-{dtype}", "one_pass", 4) for dtype in ("fp16", "bf16", "fp32")),
    softmax("5x1", "one_pass", 1),
    softmax("50x777", "one_pass", 2, layout="strided"),
    softmax("50x777", "persistent", 4),
    softmax("3x1000", "persistent", 1, layout="transposed"),
    softmax("9x5000", "online", 2, block=1024),
    softmax("7x4097-fp32", "online", 4, block=2048),
    softmax("9x777", "one_pass", 2, values="infinities"),
    softmax("9x777", "persistent", 2, values="infinities"),
    softmax("9x1500", "online", 2, block=512, values="infinities"),
]


def label(case: dict[str, Any]) -> str:
    extras = [case.get("layout"), case.get("values")]
    variant = case["configuration"]["variant"]
    return "-".join([case["kernel"], case["problem"], variant, *(extra for extra in extras if extra)])


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, float]]:
    script = Path(__file__).with_name("interpret.py")
    done = subprocess.run(
        [sys.executable, str(script)], input=json.dumps(CASES), capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{i}-{label(case)}" for i, case in enumerate(CASES)])
def test_result_is_as_close_to_float64_as_pytorch(index: int, outcomes: list[dict[str, float]]) -> None:
    outcome = outcomes[index]
    assert outcome["deviation"] <= outcome["limit"]


@pytest.mark.parametrize("kernel", ["matmul", "softmax"])
def test_every_variant_is_among_the_cases(kernel: str) -> None:
    spec = find_kernel(kernel)
    variants = next(parameter.choices for parameter in spec.parameters if parameter.name == "variant")
    assert set(variants) == {c["configuration"]["variant"] for c in CASES if c["kernel"] == kernel}


def test_descriptor_variant_refuses_rows_that_are_not_aligned() -> None:
    spec = find_kernel("matmul")
    odd = spec.space(spec.problem("64x65x64"), H200)
    assert "N * element_bytes % 16 == 0" in odd.faults({**spec.defaults[0], "variant": "descriptor"})[0]
