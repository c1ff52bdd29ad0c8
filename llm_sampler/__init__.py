"""An Optuna sampler that asks an LLM, and falls back to TPE.

Names are loaded on first use, so that ``import llm_sampler.kernels`` imports neither Optuna nor an LLM client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_sampler.client import Answer, ChatError, ChatModel
    from llm_sampler.distinct import DistinctSampler
    from llm_sampler.exhaustion import SpaceExhaustedError
    from llm_sampler.openai_chat import OpenAIChat
    from llm_sampler.prompt import Briefing, build_prompt
    from llm_sampler.sampler import LLMFallbackError, LLMSampler
    from llm_sampler.space import Parameter, Space, SpaceError
    from llm_sampler.task import Task, read_task, write_task

_HOMES = {
    "Answer": "llm_sampler.client",
    "Briefing": "llm_sampler.prompt",
    "ChatError": "llm_sampler.client",
    "ChatModel": "llm_sampler.client",
    "DistinctSampler": "llm_sampler.distinct",
    "LLMFallbackError": "llm_sampler.sampler",
    "LLMSampler": "llm_sampler.sampler",
    "OpenAIChat": "llm_sampler.openai_chat",
    "Parameter": "llm_sampler.space",
    "Space": "llm_sampler.space",
    "SpaceError": "llm_sampler.space",
    "SpaceExhaustedError": "llm_sampler.exhaustion",
    "Task": "llm_sampler.task",
    "build_prompt": "llm_sampler.prompt",
    "read_task": "llm_sampler.task",
    "write_task": "llm_sampler.task",
}
__all__ = [
    "Answer",
    "Briefing",
    "ChatError",
    "ChatModel",
    "DistinctSampler",
    "LLMFallbackError",
    "LLMSampler",
    "OpenAIChat",
    "Parameter",
    "Space",
    "SpaceError",
    "SpaceExhaustedError",
    "Task",
    "build_prompt",
    "read_task",
    "write_task",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
