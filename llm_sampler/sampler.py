"""`LLMSampler`: asks a language model for batches of configurations, and other sources whenever that is not possible.

A trial's turn: the policy says who proposes; if it is the model, take a proposal that is still free, or ask for a batch
and wait for it if waiting is wanted; otherwise another source proposes; the trial says who did, and why if it should
have been the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.advisor import Settings
from llm_sampler.attributes import FALLBACK, LLM
from llm_sampler.budget import Limits
from llm_sampler.client import ChatModel, find_endpoint
from llm_sampler.distinct import DistinctSampler
from llm_sampler.memory import Memories
from llm_sampler.notes import note_calls, tag
from llm_sampler.openai_chat import OpenAIChat
from llm_sampler.prompt import PromptBuilder, build_prompt
from llm_sampler.space import SpaceError
from llm_sampler.task import Task
from llm_sampler.transcript import with_transcript
from llm_sampler.turns import StudyTurns

if TYPE_CHECKING:
    from optuna.artifacts._protocol import ArtifactStore

_logger = optuna.logging.get_logger("optuna.llm_sampler")


class LLMFallbackError(RuntimeError):
    """The model could not propose, and the sampler is strict about it; the message is the reason."""


class LLMSampler(BaseSampler):
    """Samples with a language model, shown the task, the space and the history, and falls back to another sampler.

    Without an endpoint it is ``DistinctSampler(TPESampler(seed=seed))`` with one warning per study. Whatever goes wrong
    with a model, the study goes on; every trial says who proposed it (`attributes.PROPOSED_BY`) and, if that should
    have been the model, why it was not (`attributes.FALLBACK`). No configuration is proposed twice, and none that
    breaks a restriction (`DistinctSampler`, which also says where the space comes from).

    Args:
        model: The model's name. None: LLM_SAMPLER_MODEL, or the only model of the server at ``base_url``.
        base_url: Of an OpenAI-compatible server. None: OPENAI_BASE_URL, or OpenAI's own.
        api_key: None: OPENAI_API_KEY. A local server may need none.
        client: Any `ChatModel`, instead of the three above.
        task: What to tell the model. None: the study's own task (`write_task`), if it has one.
        search_space: The space as Optuna distributions. None: the task's, or what finished trials show.
        restrictions: Expressions that must hold; only with ``search_space``.
        fallback: Who proposes when the model does not. None: TPE, the best of Optuna's samplers on recorded kernels.
        batch_size: Configurations in the first batch; later ones have half. Twelve: enough to cover all pairs of values
            of up to five two-valued parameters and few enough to be measured before a second look pays.
        llm_share: The model's share of trials after the first batch, until results speak; on recorded spaces the first
            batch brings most of the gain, so the rest is small.
        max_calls: Calls that all workers of a study may make together; None: no limit. Thirty: enough for a
            trusted model in some 400 trials, and an end to what a study spends that nobody watches.
        max_tokens: Tokens that all workers of a study may spend together; None: no limit.
        max_seconds: Seconds that all workers of a study may spend on calls; None: no limit.
        timeout_s: Seconds that one call may take, with its repetitions; models that reason take a minute. Where a batch
            takes longer, the next call asks for half as many.
        max_prompt_tokens: Limit of one request; what is of least use is left out. The shipped kernels take
            3,500 at first and 5,300 after 60 trials. A model that says that its context is shorter gets shorter ones.
        wait: ``first``: only the first batch is waited for. ``always``: every batch is (the same seed and the same
            replies make the same study). ``never``: none is.
        transcript: A file that gets every request and reply, without keys. Where there is neither ``client`` nor
            endpoint, and the file exists, its replies are replayed (with ``wait="always"``), a missing one is an error.
        artifact_store: Gets every request and reply as a text, an artifact of the trial that noted it.
        prompt: Makes the messages from a `Briefing`, instead of `build_prompt`.
        strict: Whether a model that fails ends the study with `LLMFallbackError`.
        seed: Of the fallback and of all choices. The draws of a trial follow from the seed and the trial's number.

    Example:
        ```python
        study = optuna.create_study(sampler=LLMSampler(model="gpt-5-mini"))
        study.optimize(objective, n_trials=60)
        ```
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        client: ChatModel | None = None,
        task: Task | None = None,
        search_space: Mapping[str, BaseDistribution] | None = None,
        restrictions: Sequence[str] | None = None,
        fallback: BaseSampler | None = None,
        batch_size: int = 12,
        llm_share: float = 0.25,
        max_calls: int | None = 30,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        timeout_s: float = 120.0,
        max_prompt_tokens: int = 8_000,
        wait: Literal["first", "always", "never"] = "first",
        transcript: Path | str | None = None,
        artifact_store: ArtifactStore | None = None,
        prompt: PromptBuilder | None = None,
        strict: bool = False,
        seed: int | None = None,
    ) -> None:
        _check(batch_size=batch_size, llm_share=llm_share, timeout_s=timeout_s, wait=wait)
        if task is not None and search_space is not None:
            raise SpaceError("give either task, which has its own space, or search_space")
        found = find_endpoint(model, base_url, api_key) if client is None else ""
        model_or_none: ChatModel | None = client if isinstance(found, str) else OpenAIChat(found)
        if model_or_none is not None or (transcript is not None and Path(transcript).exists()):
            model_or_none = with_transcript(model_or_none, transcript)
        self._model = model_or_none
        self._no_model = found if isinstance(found, str) and model_or_none is None else ""
        self._task = task
        self._strict = strict
        self._artifact_store = artifact_store
        self._settings = Settings(
            batch_size=batch_size,
            llm_share=llm_share,
            limits=Limits(max_calls, max_tokens, max_seconds),
            timeout_s=timeout_s,
            wait=wait,
            max_prompt_tokens=max_prompt_tokens,
            builder=prompt or build_prompt,
        )
        self._distinct = DistinctSampler(
            fallback if fallback is not None else TPESampler(seed=seed),
            space=None if task is None else task.space,
            search_space=search_space,
            restrictions=restrictions or (),
            seed=seed,
        )
        self._start()

    def _start(self) -> None:
        self._studies = Memories(self._make_turns)

    def _make_turns(self) -> StudyTurns:
        return StudyTurns(self._distinct, self._model, self._settings, self._task)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_studies"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def reseed_rng(self) -> None:
        """Draw from fresh randomness from now on."""
        self._distinct.reseed_rng()

    def exhausted(self, study: optuna.Study) -> bool:
        """Whether the study's space was stated and none of its allowed configurations is free."""
        return self._distinct.exhausted(study)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters that a proposal may give."""
        inferred = self._distinct.infer_relative_search_space(study, trial)
        if self._model is None:
            return inferred
        return {**self._studies.of(study).conditional_space(study), **inferred}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A proposal of the model or of another source.

        Raises:
            LLMFallbackError: The sampler is strict, and the model failed.
            TranscriptError: A replayed transcript lacks the reply.
            SpaceExhaustedError: Nothing is left to propose; within ``Study.optimize`` the study has been stopped.
        """
        turns = self._studies.of(study)
        if trial.system_attrs.get("fixed_params"):
            return self._distinct.propose(study, trial, search_space)
        reason, lasting = self._no_model, bool(self._no_model)
        if self._model is not None:
            source = turns.next_source(study, trial)
            if source == LLM:
                proposal = turns.from_model(study, trial, search_space)
                note_calls(study, trial, turns.take_records(), self._artifact_store)
                if proposal.values is not None:
                    return proposal.values
                reason, lasting = proposal.reason, proposal.failed
                source = turns.next_source(study, trial, without_model=True)
            else:
                turns.prefetch(study, trial)
            values = turns.from_other(source, study, trial, search_space)
        else:
            values = turns.from_fallback(study, trial, search_space)
        if reason:
            self._fell_back(study, trial, turns, reason, lasting)
        return values

    def _fell_back(self, study: optuna.Study, trial: FrozenTrial, turns: StudyTurns, reason: str, failed: bool) -> None:
        tag(study, trial, FALLBACK, reason)
        if not failed:
            return
        if self._strict:
            raise LLMFallbackError(reason)
        if not turns.warned:
            turns.warned = True
            _logger.warning(
                f"The LLM does not propose ({reason}); {self._distinct.base_name} does. Each trial's attribute "
                f"{FALLBACK} says why; this is said once per study."
            )

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The fallback sampler's value of a parameter that no proposal gives."""
        return self._distinct.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """As `DistinctSampler.before_trial`."""
        self._distinct.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """As `DistinctSampler.after_trial`."""
        self._distinct.after_trial(study, trial, state, values)


def _check(*, batch_size: int, llm_share: float, timeout_s: float, wait: str) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 0.0 <= llm_share <= 1.0:
        raise ValueError(f"llm_share must be from 0 to 1, got {llm_share}")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s}")
    if wait not in ("first", "always", "never"):
        raise ValueError(f"wait must be first, always or never, got {wait!r}")
