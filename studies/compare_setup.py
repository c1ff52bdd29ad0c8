"""`Setup`: an arm made ready for one run: its sampler, what it measures with, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optuna.samplers import BaseSampler, TPESampler

from llm_sampler.client import ChatModel, find_endpoint
from llm_sampler.distinct import DistinctSampler
from llm_sampler.objectives.evaluate import Evaluator
from llm_sampler.space import Configuration, Value
from llm_sampler.studies.compare_arms import Arm, base_sampler
from llm_sampler.studies.compare_controls import (
    Disguise,
    DisguisedEvaluator,
    prompt_without_history,
    without_device,
    without_source,
)
from llm_sampler.studies.compare_draws import Draws, watch
from llm_sampler.studies.compare_noise import Noise, NoisyReplay
from llm_sampler.studies.compare_space import ComparedSpace, CompareError
from llm_sampler.studies.compare_transcript import TranscribedChat
from llm_sampler.task import Task

# More than a run can use: a comparison is to show what the arm does with its share, not where a budget ends.
_MOST_CALLS = 1_000


@dataclass(frozen=True)
class ModelSource:
    """Where replies come from; passed to other processes.

    Attributes:
        model: Name of the model, None for the environment's.
        base_url: Its endpoint, None for the environment's.
        transcript: The file that keeps the exchanges, and answers what it holds; None to keep none.
        live: Whether a model is asked for what the transcript lacks.
    """

    model: str | None = None
    base_url: str | None = None
    transcript: Path | None = None
    live: bool = False

    def chat(self, run: str) -> TranscribedChat:
        """The model for a run."""
        return TranscribedChat(run, self._model() if self.live else None, self.transcript)

    def _model(self) -> ChatModel:
        from llm_sampler.openai_chat import OpenAIChat

        endpoint = find_endpoint(self.model, self.base_url, None)
        if isinstance(endpoint, str):
            raise CompareError(endpoint)
        return OpenAIChat(endpoint)


@dataclass(frozen=True)
class Setup:
    """What one run needs.

    Attributes:
        sampler: Proposes.
        evaluator: Answers from the recording.
        task: What the study holds.
        draws: Counts the sampler's draws.
        chat: The language model's exchanges, None for other arms.
        disguise: Other names for the parameters, None where they have their own.
    """

    sampler: BaseSampler
    evaluator: Evaluator
    task: Task
    draws: Draws
    chat: TranscribedChat | None = None
    disguise: Disguise | None = None

    def recorded(self, configuration: Mapping[str, Value]) -> Configuration:
        """A configuration of the study as the recording names it."""
        return dict(configuration) if self.disguise is None else self.disguise.revealed(configuration)


def make_setup(
    arm: Arm, space: ComparedSpace, *, seed: int, run: str, noise: Noise = "mean", source: ModelSource | None = None
) -> Setup:
    """An arm made ready.

    Args:
        arm: The arm.
        space: The space.
        seed: Of the sampler and of the noise.
        run: Key of the run, which transcripts hold.
        noise: What a replayed measurement gives.
        source: Where the replies of a language model come from.

    Raises:
        CompareError: It cannot be made.
    """
    evaluator: Evaluator = space.replay
    if noise == "bootstrap":
        evaluator = NoisyReplay(evaluator, seed)
    if not arm.is_llm:
        base = base_sampler(arm, space.recording.space, seed=seed)
        draws = watch(base)
        sampler = DistinctSampler(base, space=space.recording.space, seed=seed)
        return Setup(sampler, evaluator, space.task, draws)
    return _llm_setup(arm, space, evaluator, seed=seed, run=run, source=source or ModelSource())


def _llm_setup(
    arm: Arm, space: ComparedSpace, evaluator: Evaluator, *, seed: int, run: str, source: ModelSource
) -> Setup:
    from llm_sampler.sampler import LLMSampler

    task = space.task
    if "no-source" in arm.switches:
        task = without_source(task)
    if "no-device" in arm.switches:
        task = without_device(task)
    disguise = Disguise.of(task.space) if "renamed" in arm.switches else None
    if disguise is not None:
        task, evaluator = disguise.task(task), DisguisedEvaluator(evaluator, disguise)
    if "simulated" in arm.options:
        chat = TranscribedChat(run, _simulated(arm, space, disguise, seed), None)
    else:
        chat = source.chat(run)
    base = TPESampler(seed=seed)
    draws = watch(base)
    options: dict[str, float] = {}
    if "share" in arm.options:
        options["llm_share"] = float(arm.options["share"])
    if "pure" in arm.switches:
        options["llm_share"] = 1.0
    if "batch" in arm.options:
        options["batch_size"] = int(arm.options["batch"])
    try:
        sampler = LLMSampler(
            client=chat,
            fallback=base,
            seed=seed,
            wait="always",  # the same replies then make the same study
            max_calls=_MOST_CALLS,
            prompt=prompt_without_history if "no-history" in arm.switches else None,
            **options,  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise CompareError(f"{arm.text}: {error}") from None
    return Setup(sampler, evaluator, task, draws, chat, disguise)


def _simulated(arm: Arm, space: ComparedSpace, disguise: Disguise | None, seed: int) -> ChatModel:
    """A model of known quality that answers from the recording: what the sampler makes of good and of bad advice."""
    from llm_sampler.simulated import QUALITIES, SimulatedModel

    quality = next((known for known in QUALITIES if known == arm.options["simulated"]), None)
    if quality is None:
        raise CompareError(f"simulated must be one of {', '.join(QUALITIES)}, got {arm.options['simulated']!r}")
    configurations = [disguise.configuration(c) if disguise else c for c in space.configurations]
    return SimulatedModel(list(zip(configurations, space.times_ms, strict=True)), quality, seed=seed)
