"""Who may import whom: scripts -> studies -> {objectives -> kernels, llm_sampler}, and space.py under all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# `llm_sampler.space` is the shared vocabulary (parameters, restrictions, configurations): it knows nothing of
# sampling, imports no Optuna, and restrictions must be evaluated in one place.
ALLOWED = {
    "llm_sampler": {"llm_sampler", "space"},
    "kernels": {"kernels", "space"},
    "objectives": {"objectives", "kernels", "space"},
    "studies": {"studies", "objectives", "kernels", "llm_sampler", "space"},
    "scripts": {"scripts", "studies", "objectives", "kernels", "llm_sampler", "space"},
}
HEAVY = {"torch", "triton", "pebble"}
SUBPACKAGES = {"kernels", "objectives", "studies", "scripts"}


def layer_of(module: str) -> str | None:
    """The layer that an absolute module name belongs to, None for other projects' modules."""
    parts = module.split(".")
    if parts[0] != "llm_sampler":
        return None
    if len(parts) > 1 and parts[1] in SUBPACKAGES:
        return parts[1]
    return "space" if parts[1:2] == ["space"] else "llm_sampler"


def imports(tree: ast.AST) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import on line {node.lineno}"
            if node.module == "llm_sampler":
                found += [(f"llm_sampler.{alias.name}", node.lineno) for alias in node.names]
            elif node.module:
                found.append((node.module, node.lineno))
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_only_what_their_layer_allows(package: str) -> None:
    files = sorted((ROOT / package).glob("*.py"))
    assert files, f"{package}/ holds no Python file"
    broken = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in files
        for module, line in imports(ast.parse(path.read_text()))
        if (layer := layer_of(module)) is not None and layer not in ALLOWED[package]
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_torch_and_triton_are_imported_only_inside_functions(package: str) -> None:
    broken = []
    for path in sorted((ROOT / package).glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in tree.body:  # module level only; `if TYPE_CHECKING:` blocks are not executed
            if isinstance(node, ast.Import | ast.ImportFrom):
                broken += [f"{path.name}:{n}" for m, n in imports(node) if m.split(".")[0] in HEAVY]
    assert not broken, "\n".join(broken)


def test_the_shared_vocabulary_stands_alone() -> None:
    modules = {module.split(".")[0] for module, _ in imports(ast.parse((ROOT / "llm_sampler/space.py").read_text()))}
    assert not modules & (HEAVY | {"optuna", "openai", "llm_sampler"})


def test_no_file_grows_past_400_lines() -> None:
    packages = (*ALLOWED, "tests")
    long = {
        str(path.relative_to(ROOT)): count
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert not long
