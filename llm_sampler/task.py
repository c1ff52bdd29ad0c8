"""What a sampler may tell an LLM about a study, kept in the study itself as JSON.

A `Task` reaches the sampler through study attributes, so that any worker that opens the study has it; it is data, and
the sampler knows nothing about kernels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llm_sampler.space import Space, SpaceError, Value

if TYPE_CHECKING:
    import optuna

TASK_ATTRIBUTE = "llm_sampler:task"
# MySQL keeps 65,535 bytes a value; JSON text in characters of up to four bytes, escaped to ASCII, stays below.
_CHUNK_CHARACTERS = 60_000


@dataclass(frozen=True)
class Task:
    """The task of a study.

    Attributes:
        title: One line, e.g. ``matmul M4096-N4096-K4096-fp16 on NVIDIA H200``.
        space: Parameters with meanings, restrictions, default and the facts that the restrictions use.
        description: What the parameters control and how the value is measured.
        source: Source text of what is tuned; empty if there is none.
        problem: Sizes, dtype, FLOPs, bytes: whatever describes the input.
        device: Limits and rates of the device that runs it.
        objective: What the study's value is.
        unit: Unit of the value.
        outcome: Name of the trial user attribute (a JSON object) that holds what was measured beyond the value;
            its ``status`` and ``detail`` explain failures. Empty if there is none.
    """

    title: str
    space: Space
    description: str = ""
    source: str = ""
    problem: Mapping[str, Value] = field(default_factory=dict)
    device: Mapping[str, Value] = field(default_factory=dict)
    objective: str = "value"
    unit: str = ""
    outcome: str = ""

    def to_json(self) -> str:
        """As JSON text, ASCII only."""
        data = {**asdict(self), "space": self.space.to_json()}
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Task:
        """A task from what ``to_json`` gave.

        Raises:
            SpaceError: The text has another form.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            return cls(**{**data, "space": Space.from_json(data["space"])})
        except (ValueError, KeyError, TypeError) as error:
            raise SpaceError(f"not a task: {error!r}") from None


def write_task(study: optuna.Study, task: Task) -> None:
    """Keep the task in the study, in as many attributes of at most 60 kB as it needs."""
    text = task.to_json()
    pieces = [text[start : start + _CHUNK_CHARACTERS] for start in range(0, len(text), _CHUNK_CHARACTERS)]
    for index, piece in enumerate(pieces):
        study.set_user_attr(f"{TASK_ATTRIBUTE}:{index}", piece)
    study.set_user_attr(TASK_ATTRIBUTE, len(pieces))


def read_task(user_attrs: Mapping[str, Any]) -> Task | None:
    """The task that a study's user attributes hold, None where there is none.

    Raises:
        SpaceError: The attributes hold something else under that name.
    """
    count = user_attrs.get(TASK_ATTRIBUTE)
    if count is None:
        return None
    try:
        text = "".join(user_attrs[f"{TASK_ATTRIBUTE}:{index}"] for index in range(count))
    except (KeyError, TypeError) as error:
        raise SpaceError(f"the study's task is incomplete: {error!r}") from None
    return Task.from_json(text)
