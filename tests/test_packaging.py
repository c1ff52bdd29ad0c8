"""The wheel in a fresh environment: what it holds, what it needs, and whom it leaves alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUBPACKAGES = ("kernels", "objectives", "studies", "scripts")


def call(*command: str | Path, cwd: Path | None = None) -> str:
    """Standard output of a command; its outputs are shown where it fails.

    By default in the temporary folder: Python would find the tree's ``kernels`` in the current one.
    """
    cwd = cwd or Path(tempfile.gettempdir())
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_TARGET", "PIP_QUIET")
    }
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree: setuptools writes into what it builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = call("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Python of a fresh environment with Hugging Face's kernels and, beside it, our wheel and its base requirements."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", folder)
    interpreter = folder / "bin" / "python"
    call(interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "kernels", wheel)
    return interpreter


def hashes(python: Path, distribution: str) -> dict[str, str]:
    """SHA-256 by path of what an installed distribution's RECORD lists, compiled files aside."""
    code = (
        "import importlib.metadata, json, sys\n"
        "files = importlib.metadata.files(sys.argv[1]) or []\n"
        "print(json.dumps([str(file.locate()) for file in files if file.suffix != '.pyc']))\n"
    )
    paths = json.loads(call(python, "-c", code, distribution))
    return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths}


def test_the_wheel_holds_every_package_and_all_recordings(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"llm_sampler/__init__.py", "llm_sampler/py.typed"}
    expected |= {f"llm_sampler/{path.name}" for path in (ROOT / "llm_sampler").glob("*.py")}
    for package in SUBPACKAGES:
        expected |= {f"llm_sampler/{package}/{path.name}" for path in (ROOT / package).glob("*.py")}
    recordings = (ROOT / "objectives" / "recordings").glob("*.json.gz")
    expected |= {f"llm_sampler/objectives/recordings/{path.name}" for path in recordings}
    assert expected <= names
    assert {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")} == {"llm_sampler"}


def test_the_base_requirements_are_small(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    lines = archive.read(name).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    base = [requirement for requirement in required if "extra ==" not in requirement]
    assert any(requirement.startswith("optuna") for requirement in base)
    assert not [r for r in base if r.startswith(("torch", "triton", "pebble", "optuna-dashboard", "scipy"))]


@pytest.mark.slow
def test_ours_and_hugging_faces_kernels_live_side_by_side(python: Path) -> None:
    theirs = hashes(python, "kernels")
    assert any(path.endswith("/kernels/__init__.py") for path in theirs)
    both = (
        "import kernels, llm_sampler.kernels\n"
        "assert hasattr(kernels, 'get_kernel') and not hasattr(kernels, 'KERNELS'), kernels.__file__\n"
        "assert 'matmul' in llm_sampler.kernels.KERNELS\n"
    )
    call(python, "-c", both)
    ours = hashes(python, "optuna-llm-sampler")
    assert not theirs.keys() & ours.keys()
    installed = json.loads(call(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
    assert not {package["name"] for package in installed} & {"torch", "triton"}

    listed = call(python.parent / "llm-sampler", "kernels")
    assert "matmul" in listed
    storage = f"sqlite:///{python.parent}/study.db"
    tuned = call(python.parent / "llm-sampler", "tune", "matmul", "--trials", "15", "--storage", storage)
    assert "Stopped after 15 trials" in tuned
    call(python, "-m", "pip", "uninstall", "--quiet", "--yes", "optuna-llm-sampler")
    assert hashes(python, "kernels") == theirs
    call(python, "-c", "import kernels; assert hasattr(kernels, 'get_kernel')")
    assert not [path for path in ours if Path(path).exists()]


@pytest.mark.parametrize("module", ["llm_sampler.kernels", "llm_sampler.objectives.shipped", "llm_sampler.space"])
def test_what_describes_kernels_imports_neither_optuna_nor_torch(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'optuna', 'openai', 'torch', 'triton', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    call(sys.executable, "-c", code)
