"""Exports are read by the autotuning community's own packages: their schema, and Kernel Tuner's simulation mode.

Skipped unless they are installed beside the tests' own packages:

    pip install -e ".[test]" kernel-tuner autotuning-methodology jsonschema
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llm_sampler.objectives.shipped import shipped_recordings
from llm_sampler.space import configuration_key
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.exchange import copies_of, read_t4, write_t4
from llm_sampler.studies.merge import merge

pytest.importorskip("kernel_tuner")
pytest.importorskip("autotuning_methodology")
pytestmark = pytest.mark.filterwarnings("ignore")

# Kernel Tuner's names of what it cannot time.
FAILED = {
    "compile": "CompilationFailedConfig",
    "runtime": "RuntimeFailedConfig",
    "timeout": "RuntimeFailedConfig",
    "correctness": "RuntimeFailedConfig",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A recording of all configurations of softmax: into an archive, and out of it again."""
    folder = tmp_path_factory.mktemp("export")
    shipped = next(one for one in shipped_recordings() if one.path.name.startswith("softmax-8192"))
    storage = open_storage(f"sqlite:///{folder}/archive.db")
    merge(storage, [read_t4(shipped.path)])
    (copy,) = copies_of(storage)
    write_t4(folder / "softmax_T4.json.gz", copy)
    return shipped.path, json.loads(gzip.decompress((folder / "softmax_T4.json.gz").read_bytes()))


def test_the_schemas_accept_an_export(document: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    import jsonschema
    from autotuning_methodology.formats_interface import load_T4_format
    from kernel_tuner.file_utils import output_file_schema

    path = tmp_path / "softmax_T4.json"
    path.write_text(json.dumps(document[1]))
    assert len(load_T4_format(path, validate=True)["results"]) == len(document[1]["results"]) > 500
    _, schema = output_file_schema("results")
    jsonschema.validate(document[1], schema if isinstance(schema, dict) else json.loads(schema))


def test_kernel_tuners_simulation_finds_the_same_optimum(
    document: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kernel_tuner
    from constraint import FunctionConstraint

    monkeypatch.chdir(tmp_path)
    recording, data = document
    space = data["metadata"]["space"]
    tune_params = {parameter["name"]: parameter["choices"] for parameter in space["parameters"]}
    cache = {}
    for result in data["results"]:
        configuration = {name: result["configuration"][name] for name in tune_params}
        (objective,) = result["objectives"]
        (value,) = (m["value"] for m in result["measurements"] if m["name"] == objective)
        cache[",".join(str(value) for value in configuration.values())] = {
            **configuration,
            "time": FAILED.get(result["invalidity"], value),
            "times": result["times"].get("runtimes", []),
            "compile_time": result["times"].get("compilation", 0.0),
            "verification_time": 0.0,
            "benchmark_time": result["times"].get("framework", 0.0),
            "strategy_time": 0.0,
            "framework_time": 0.0,
        }
    (tmp_path / "cache.json").write_text(
        json.dumps(
            {
                "device_name": data["metadata"]["device"]["name"],
                "kernel_name": "softmax",
                "problem_size": 1,
                "tune_params_keys": list(tune_params),
                "tune_params": tune_params,
                "objective": "time",
                "cache": cache,
            }
        )
    )
    results, _ = kernel_tuner.tune_kernel(
        "softmax",
        "void softmax() {}",
        1,
        [],
        tune_params,
        restrictions=[FunctionConstraint(lambda *values: ",".join(str(value) for value in values) in cache)],
        lang="C",
        simulation_mode=True,
        cache=str(tmp_path / "cache.json"),
        strategy="brute_force",
    )
    assert len(results) == len(cache)
    timed = [result for result in results if isinstance(result["time"], float)]
    best = min(timed, key=lambda result: result["time"])
    optimum = read_t4(recording)
    ours = min((trial for trial in optimum.trials if trial.values), key=lambda trial: trial.values[0])
    assert best["time"] == ours.values[0]
    assert configuration_key({name: best[name] for name in tune_params}) == configuration_key(ours.params)
