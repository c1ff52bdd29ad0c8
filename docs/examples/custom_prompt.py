"""What you know, in the prompt: ``python docs/examples/custom_prompt.py``.

A prompt builder is a function from a `Briefing` (the space, the trials so far, how many configurations to ask for) to
the messages. The simplest one adds to what `build_prompt` writes; another may write everything itself. The endpoint
comes from the environment, as in ``plain_study.py``.
"""

from __future__ import annotations

import optuna
from optuna.distributions import IntDistribution

from llm_sampler import Briefing, LLMSampler, build_prompt
from llm_sampler.client import Message

KNOWN = "From earlier work: the ratio of width to height matters more than either, and 3 was best on other inputs."


def prompt_with_knowledge(briefing: Briefing) -> list[Message]:
    """The usual messages, and what is known at the end of the first."""
    system, user = build_prompt(briefing)
    return [{"role": system["role"], "content": f"{system['content']}\n\n{KNOWN}"}, user]


def objective(trial: optuna.Trial) -> float:
    """Least where the width is 3 times the height."""
    width, height = trial.suggest_int("width", 1, 30), trial.suggest_int("height", 1, 30)
    return abs(width / height - 3) + 0.01 * height


sampler = LLMSampler(
    prompt=prompt_with_knowledge,
    search_space={"width": IntDistribution(1, 30), "height": IntDistribution(1, 30)},
    seed=0,
)
study = optuna.create_study(sampler=sampler)
study.optimize(objective, n_trials=30)
print(f"best {study.best_value:.4f} with {study.best_params}")
