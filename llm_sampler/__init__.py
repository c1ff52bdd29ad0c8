"""An Optuna sampler that asks an LLM, and falls back to TPE.

Names are loaded on first use, so that ``import llm_sampler.kernels`` imports neither Optuna nor an LLM client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_sampler.distinct import DistinctSampler
    from llm_sampler.sampler import LLMSampler
    from llm_sampler.task import Task, read_task, write_task

_HOMES = {
    "DistinctSampler": "llm_sampler.distinct",
    "LLMSampler": "llm_sampler.sampler",
    "Task": "llm_sampler.task",
    "read_task": "llm_sampler.task",
    "write_task": "llm_sampler.task",
}
__all__ = ["DistinctSampler", "LLMSampler", "Task", "read_task", "write_task"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
