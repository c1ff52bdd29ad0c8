"""A worker process of a study: ``worker.py URL STUDY TRIALS SEED MODEL_URL MAX_CALLS PAUSE_S``."""

from __future__ import annotations

import sys
import time

import optuna
from four_numbers import SPACE

from llm_sampler.sampler import LLMSampler

url, name, trials, seed, base_url, max_calls, pause_s = sys.argv[1:]
optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}} if "sqlite" in url else {})
sampler = LLMSampler(base_url=base_url, model="m", seed=int(seed), max_calls=int(max_calls), batch_size=6)
study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)


def objective(trial: optuna.Trial) -> float:
    values = [trial.suggest_categorical(p.name, p.choices) for p in SPACE.parameters]
    time.sleep(float(pause_s))
    return 1.0 + sum(abs(a - b) for a, b in zip(values, (3, 1, 4, 1), strict=True))


study.optimize(objective, n_trials=int(trials))
