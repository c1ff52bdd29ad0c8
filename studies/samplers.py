"""Samplers by name, each wrapped so that it never proposes a configuration twice or a restricted one."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import optuna
from optuna.artifacts import FileSystemArtifactStore
from optuna.samplers import BaseSampler

SAMPLERS = ("llm", "tpe", "random", "nsgaii", "gp")


class _Folder(FileSystemArtifactStore):
    """An artifact store in a folder that is made when something is kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Keep an artifact."""
        self._folder.mkdir(parents=True, exist_ok=True)
        super().write(artifact_id, content_body)


class SamplerError(ValueError):
    """A sampler that does not exist or cannot be used here; the message says the remedy."""


def make_sampler(
    name: str,
    *,
    seed: int | None = None,
    model: str | None = None,
    base_url: str | None = None,
    artifacts: Path | None = None,
) -> BaseSampler:
    """The sampler of that name, for studies that have a task.

    Args:
        name: One of `SAMPLERS`.
        seed: Makes a study repeatable; None draws one.
        model: The LLM, for ``llm``; None for the environment's.
        base_url: Its endpoint, for ``llm``; None for the environment's.
        artifacts: Folder that gets requests and replies, for ``llm``; made when there are any. None: they are not kept.

    Raises:
        SamplerError: There is none of that name, it has no LLM to configure, or it lacks packages.
    """
    if name not in SAMPLERS:
        raise SamplerError(f"sampler must be one of {', '.join(SAMPLERS)}, got {name!r}")
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise SamplerError(
            f"base URL must begin with http:// or https://, got {base_url.partition('@')[2] or base_url!r}"
        )
    if name == "llm":
        from llm_sampler import LLMSampler

        store = _Folder(artifacts) if artifacts is not None else None
        return LLMSampler(model=model, base_url=base_url, seed=seed, artifact_store=store)
    if model is not None or base_url is not None:
        raise SamplerError(f"a model or base URL is for sampler llm, and the sampler is {name}: leave one of them out")
    from llm_sampler import DistinctSampler

    return DistinctSampler(optuna_sampler(name, seed=seed), seed=seed)


# Optuna's samplers, and what each needs beside Optuna: without it they would fail only after their random start.
OPTUNA_SAMPLERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tpe": ("TPESampler", ()),
    "random": ("RandomSampler", ()),
    "nsgaii": ("NSGAIISampler", ()),
    "gp": ("GPSampler", ("torch", "scipy")),
    "cmaes": ("CmaEsSampler", ("cmaes",)),
    "qmc": ("QMCSampler", ("scipy",)),
}


def optuna_sampler(name: str, *, seed: int | None = None, **options: Any) -> BaseSampler:
    """One of Optuna's samplers by its short name, unwrapped.

    Args:
        name: One of `OPTUNA_SAMPLERS`.
        seed: Makes it repeatable.
        options: Other arguments of its class.

    Raises:
        SamplerError: It lacks packages, or its class refuses the options.
    """
    class_name, needs = OPTUNA_SAMPLERS[name]
    if missing := [package for package in needs if importlib.util.find_spec(package) is None]:
        raise SamplerError(f"sampler {name} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler: BaseSampler = getattr(optuna.samplers, class_name)(seed=seed, **options)
    except (TypeError, ValueError) as error:
        raise SamplerError(f"sampler {name}: {error}") from None
    return sampler
