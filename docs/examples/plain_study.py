"""A plain Optuna study with a language model: ``python docs/examples/plain_study.py``.

Set OPENAI_API_KEY and LLM_SAMPLER_MODEL, or OPENAI_BASE_URL for a local server. Without them the sampler is TPE and
says so once.
"""

from __future__ import annotations

from collections import Counter

import optuna

from llm_sampler import LLMSampler
from llm_sampler.attributes import PROPOSED_BY


def objective(trial: optuna.Trial) -> float:
    """The loss of a training run, in place of one: least at a rate of 0.003, 4 layers and Adam."""
    rate = trial.suggest_float("learning_rate", 1e-5, 1.0, log=True)
    layers = trial.suggest_int("layers", 1, 12)
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adam", "rmsprop"])
    return abs(rate - 0.003) * 10 + abs(layers - 4) * 0.2 + (optimizer != "adam")


# The model is asked once the first trial has shown the parameters; with `search_space=` it can open the study.
study = optuna.create_study(sampler=LLMSampler(seed=0))
study.optimize(objective, n_trials=40)

print(f"best {study.best_value:.4f} with {study.best_params}")
print("proposed by", dict(Counter(trial.user_attrs[PROPOSED_BY] for trial in study.trials)))
