"""Controls for a language model's arm: what it may not know, so that one sees what its advice rests on.

* no source, no device: parts of the task are left out. Restrictions stay, with their limits: they are rules.
* no history: every request is an opening, with nothing measured in it.
* renamed: the whole study runs in a space whose parameters and facts have other names, of a kernel without a name, a
  source, meanings or sizes. A model that only remembers good values of ``BLOCK_M`` and ``num_warps`` loses its lead.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llm_sampler.objectives.evaluate import WrappedEvaluator
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.space import Configuration, Parameter, Space, Value
from llm_sampler.task import Task

if TYPE_CHECKING:
    from llm_sampler.client import Message
    from llm_sampler.prompt import Briefing

_HIDDEN = "The parameters of a program; every value is the median time of its runs."


def without_source(task: Task) -> Task:
    """The task without source text."""
    return replace(task, source="")


def without_device(task: Task) -> Task:
    """The task without the device's facts and name, and without what follows from them."""
    name = str(task.device.get("name", ""))
    title = task.title.replace(f" on {name}", "") if name else task.title
    problem = {fact: value for fact, value in task.problem.items() if fact != "roofline_ms"}
    return replace(task, device={}, title=title, problem=problem)


def prompt_without_history(briefing: Briefing) -> list[Message]:
    """A prompt as if nothing had been measured; implements `PromptBuilder`."""
    from llm_sampler.prompt import build_prompt

    return build_prompt(replace(briefing, rows=(), opening=True))


@dataclass(frozen=True)
class Disguise:
    """Other names for the parameters and facts of a space.

    Attributes:
        parameters: New name by old name.
        facts: New name by old name.
    """

    parameters: Mapping[str, str]
    facts: Mapping[str, str]

    @classmethod
    def of(cls, space: Space) -> Disguise:
        """Names without a meaning: p1, p2, ... and f1, f2, ..."""
        parameters = {name: f"p{index}" for index, name in enumerate(space.names, 1)}
        facts = {name: f"f{index}" for index, name in enumerate(space.facts, 1)}
        return cls(parameters, facts)

    def configuration(self, configuration: Configuration) -> Configuration:
        """A configuration under its new names."""
        return {self.parameters[name]: value for name, value in configuration.items()}

    def revealed(self, configuration: Mapping[str, Value]) -> Configuration:
        """A configuration under its old names."""
        old = {new: name for name, new in self.parameters.items()}
        return {old[name]: value for name, value in configuration.items()}

    def space(self, space: Space) -> Space:
        """The space under its new names, without meanings."""
        return Space(
            tuple(Parameter(self.parameters[p.name], p.choices) for p in space.parameters),
            tuple(self._renamed(text) for text in space.restrictions),
            None if space.default is None else self.configuration(space.default),
            {self.facts[name]: value for name, value in space.facts.items()},
        )

    def task(self, task: Task) -> Task:
        """The task of a program without a name; the device stays."""
        name = str(task.device.get("name", ""))
        return Task(
            title=f"a program on {name}" if name else "a program",
            space=self.space(task.space),
            description=_HIDDEN,
            device=task.device,
            objective="median time",
            unit=task.unit,
        )

    def _renamed(self, text: str) -> str:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = self.parameters.get(node.id, self.facts.get(node.id, node.id))
        return ast.unparse(tree)


@dataclass(frozen=True)
class DisguisedEvaluator(WrappedEvaluator):
    """Measures the configurations of a disguised space; implements `Evaluator`.

    Attributes:
        base: What measures.
        disguise: The names.
    """

    disguise: Disguise

    @functools.cached_property
    def space(self) -> Space:
        """The base's space in disguise."""
        return self.disguise.space(self.base.space)

    def evaluate(self, configuration: Configuration) -> Measurement:
        """What the base measures of the configuration; why one fails is left out, as it may name the kernel."""
        return self.base.evaluate(self.disguise.revealed(configuration)).with_(detail="")
