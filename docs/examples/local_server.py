"""A study with a model on a server of your own: ``python docs/examples/local_server.py [BASE_URL]``.

The server is any that speaks OpenAI's chat completions (llama.cpp, Ollama, vLLM: see docs/local-models.md). It needs
no key, and the model no name if the server has only one.
"""

from __future__ import annotations

import sys

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution

from llm_sampler import LLMSampler
from llm_sampler.attributes import CALLS, FALLBACK, PROPOSED_BY

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8011/v1"
sampler = LLMSampler(
    base_url=base_url,
    search_space={
        "block": CategoricalDistribution([16, 32, 64, 128, 256]),
        "warps": CategoricalDistribution([1, 2, 4, 8]),
        "stages": IntDistribution(1, 5),
    },
    restrictions=["block * stages <= 512"],
    batch_size=6,  # a small model loses the thread in long replies
    timeout_s=300,  # and a CPU takes its time
    seed=0,
)


def objective(trial: optuna.Trial) -> float:
    """A made-up time in ms, least at 128, 8 and 3."""
    block = trial.suggest_categorical("block", [16, 32, 64, 128, 256])
    warps = trial.suggest_categorical("warps", [1, 2, 4, 8])
    stages = trial.suggest_int("stages", 1, 5)
    return 1.0 + abs(block - 128) / 64 + abs(warps - 8) / 4 + 0.3 * abs(stages - 3)


study = optuna.create_study(sampler=sampler)
study.optimize(objective, n_trials=20)

print(f"best {study.best_value:.3f} with {study.best_params}")
for trial in study.trials:
    for call in trial.user_attrs.get(CALLS, []):
        told = call.get("error") or f"{call.get('proposals', 0)} legal proposals, {call.get('rejected', 0)} rejected"
        print(f"call {call['id']} in {call.get('seconds', 0.0):.1f} s: {told}")
mine = sum(trial.user_attrs[PROPOSED_BY] == "llm" for trial in study.trials)
reasons = {trial.user_attrs[FALLBACK] for trial in study.trials if FALLBACK in trial.user_attrs}
print(f"{mine} of {len(study.trials)} trials are the model's; where another stood in: {reasons or 'nowhere'}")
