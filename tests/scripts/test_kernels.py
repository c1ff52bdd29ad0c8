from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_sampler.kernels import A100, H200, KERNELS, KernelSpec, find_kernel
from llm_sampler.space import Space

Run = Callable[..., tuple[int, str, str]]


def test_it_lists_kernels_problems_and_what_is_recorded(package: Path, run: Run) -> None:
    status, out, err = run("kernels")
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    for spec in KERNELS.values():
        assert f"{spec.name} {spec.title}" in words
        for problem in spec.problems:
            assert problem.short in words
    assert words.count("(recorded)") == 2
    assert "16x8192x8192-fp16 (recorded)" in words


def test_the_list_as_json(package: Path, run: Run) -> None:
    _, out, _ = run("kernels", "--format", "json")
    found = {one["name"]: one for one in json.loads(out)}
    assert list(found) == list(KERNELS)
    assert found["matmul"]["recordings"] == ["16x8192x8192-fp16", "4096x4096x4096-fp16"]
    assert found["softmax"]["recordings"] == []


@pytest.mark.parametrize("spec", KERNELS.values(), ids=lambda spec: spec.name)
def test_one_kernel_shows_all_that_a_person_needs(package: Path, run: Run, spec: KernelSpec) -> None:
    status, out, err = run("kernels", "show", spec.name, "--problem", spec.problems[0].short)
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    assert " ".join(spec.description.split()) in words
    default = spec.space(spec.problems[0], H200).default
    assert default is not None
    table = out.partition("\nparameter ")[2].partition("\n\n")[0].splitlines()
    for parameter in spec.parameters:
        line = next(line for line in table if line.startswith(f"{parameter.name} "))
        assert str(parameter.choices[0]) in line
        assert str(default[parameter.name]) in line
    assert all(" ".join(text.split()) in words for text in spec.restrictions)
    assert f"{spec.problems[0].short} {spec.space(spec.problems[0], H200).size:,}" in words
    assert out.endswith(spec.source)


def test_recordings_and_differing_defaults_of_problems(package: Path, run: Run) -> None:
    _, out, _ = run("kernels", "show", "matmul")
    recorded = next(line for line in out.splitlines() if line.startswith("16x8192x8192-fp16 "))
    assert "0.1 ms" in recorded
    assert "0.2 ms" in recorded
    assert "300 on NVIDIA H200, 2025-11-30" in " ".join(out.split())
    _, out, _ = run("kernels", "show", "softmax", "--problem", "64x131072")
    assert "online" in next(line for line in out.splitlines() if line.startswith("variant "))


def test_as_json_it_is_all_that_a_prompt_needs(package: Path, run: Run) -> None:
    _, out, _ = run("kernels", "show", "matmul", "--format", "json")
    shown, spec = json.loads(out), find_kernel("matmul")
    assert shown["source"] == spec.source
    recorded = {one["problem"]: one for one in shown["problems"]}["4096x4096x4096-fp16"]
    assert (recorded["recordings"][0]["best_ms"], recorded["recordings"][0]["reference_ms"]) == (0.1, 0.2)
    first = shown["problems"][0]
    facts = {**shown["facts"], **first["sizes"], "element_bytes": 2}
    space = Space.from_json({**shown, "facts": facts, "default": first["default"]})
    assert space.size == first["allowed"] == spec.space(spec.problems[0], H200).size
    assert space.default is not None
    assert space.allows(space.default)


def test_another_device_has_another_space(package: Path, run: Run) -> None:
    sizes = {}
    for device in ("h200", "A100"):
        _, out, _ = run(
            "kernels", "show", "matmul", "--device", device, "--problem", "4096x4096x4096", "--format", "json"
        )
        shown = json.loads(out)
        sizes[shown["device"]] = shown["problems"][0]["allowed"]
    assert sizes["NVIDIA H200"] > sizes[A100.name] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("matmull",), "one of"),
        (("matmul", "--problem", "1x2"), "problem of matmul must be"),
        (("matmul", "--device", "B999"), "device must be one of"),
    ],
)
def test_what_there_is_not_is_said_in_one_line(package: Path, run: Run, arguments: tuple[str, ...], words: str) -> None:
    status, out, err = run("kernels", "show", *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


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
