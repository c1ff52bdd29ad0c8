"""One run of a comparison: an arm with a seed on a space, and its record.

Times in ms (``_ms``) or seconds (``_s``). A record holds nothing that depends on the clock of the machine that made it,
except its ``clock``: the same package, recording and replies make the same record anywhere.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import CALLS, DEFAULT, PROPOSED_BY
from llm_sampler.client import redact
from llm_sampler.objectives.kernel_objective import STATUS_ATTRIBUTE, KernelObjective
from llm_sampler.space import configuration_key
from llm_sampler.studies.compare_arms import parse_arm
from llm_sampler.studies.compare_noise import Noise
from llm_sampler.studies.compare_setup import ModelSource, Setup, make_setup
from llm_sampler.studies.compare_space import ComparedSpace, SpaceFile
from llm_sampler.task import write_task

# An arm that draws one taken or forbidden configuration again and again, in so many trials in a row, proposes nothing.
# (That a draw is replaced says little: four of five of TPE's are on a small space, and it is the better for the fifth.)
MOST_REPEATS = 30


class NothingNewError(RuntimeError):
    """The arm proposes only what is taken or forbidden."""


class RunTimeout(RuntimeError):
    """The run took longer than its limit."""


@dataclass(frozen=True)
class Job:
    """What to run; passed to another process.

    Attributes:
        space: The space.
        arm: The arm's text.
        seed: The seed.
        trials: Measurements.
        noise: What a replayed measurement gives.
        default_first: Whether the default configuration is measured first.
        limit_s: Seconds that the run may take.
        source: Where a language model's replies come from.
        storage: Database that gets the finished study; None to keep none.
    """

    space: SpaceFile
    arm: str
    seed: int
    trials: int
    noise: Noise = "mean"
    default_first: bool = True
    limit_s: float = 1_800.0
    source: ModelSource = field(default_factory=ModelSource)
    storage: str | None = None

    @property
    def key(self) -> str:
        """What tells the run from all others: ``space/arm/seed-3``, noise and a missing default where there are."""
        parts = [self.space.name, self.arm, f"seed-{self.seed}"]
        parts += ["bootstrap"] if self.noise == "bootstrap" else []
        parts += [] if self.default_first else ["no-default"]
        return "/".join(parts)


@dataclass(frozen=True)
class Run:
    """What came of a job. Lists have one entry per measurement, in order.

    Attributes:
        key: The job's.
        space: Name of the space.
        arm: Text of the arm.
        seed: The seed.
        trials: Measurements that were wanted.
        digest: Of recording and space: a run counts for no other.
        rows: Index of the configuration in the recording's (by key).
        observed_ms: What the sampler was told, None where the configuration failed.
        asks: Draws so far; more than measurements where a draw was taken or forbidden, or a reply was of no use.
        simulated_s: Seconds so far that tuning would have taken: compiling, measuring, and waiting for replies.
        replaced: How many measurements were not the arm's own proposals but free neighbours of them.
        proposed_by: How many measurements each source proposed.
        llm_calls: Calls of a language model.
        llm_tokens: Tokens of them.
        llm_s: Seconds of them.
        model: Name of the language model; empty where none was asked.
        failure: Why the run ended early; empty if it did not.
        clock: Seconds on the machine that made it: ``sampler_cpu_s``, ``wall_s``.
    """

    key: str
    space: str
    arm: str
    seed: int
    trials: int
    digest: str
    rows: list[int] = field(default_factory=list)
    observed_ms: list[float | None] = field(default_factory=list)
    asks: list[int] = field(default_factory=list)
    simulated_s: list[float] = field(default_factory=list)
    replaced: int = 0
    proposed_by: Mapping[str, int] = field(default_factory=dict)
    llm_calls: int = 0
    llm_tokens: int = 0
    llm_s: float = 0.0
    model: str = ""
    failure: str = ""
    clock: Mapping[str, float] = field(default_factory=dict)

    def to_json(self, *, with_clock: bool = True) -> dict[str, Any]:
        """As JSON types."""
        data = asdict(self)
        if not with_clock:
            del data["clock"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """A run from what ``to_json`` gave.

        Raises:
            TypeError: The data has another form.
        """
        return cls(**data)


def space_digest(space: ComparedSpace) -> str:
    """Changes when the recording or its space does."""
    return f"{space.recording.digest()}-{space.recording.space.digest()}"


def failed_run(job: Job, failure: str) -> Run:
    """The record of a job whose process was lost."""
    digest = space_digest(job.space.load())
    return Run(job.key, job.space.name, job.arm, job.seed, job.trials, digest, failure=failure)


def run_job(job: Job) -> Run:
    """Run a job. Whatever its arm does wrong is a failure in the record."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = job.space.load()
    recorder = _Recorder(job, space)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of samplers, about what the arm was asked for
            setup = make_setup(
                parse_arm(job.arm), space, seed=job.seed, run=job.key, noise=job.noise, source=job.source
            )
            recorder.run(setup)
    except Exception as error:  # noqa: BLE001 - an arm may raise anything, and the other runs go on
        recorder.failure = _told(error)
    return recorder.record()


def _told(error: Exception) -> str:
    if isinstance(error, RunTimeout | NothingNewError):
        return str(error)
    return redact(f"raised {type(error).__name__}: {error}")


class _Recorder:
    """Runs a study and takes down what it does."""

    def __init__(self, job: Job, space: ComparedSpace) -> None:
        self.failure = ""
        self._job = job
        self._space = space
        self._rows: list[int] = []
        self._observed: list[float | None] = []
        self._asks: list[int] = []
        self._simulated: list[float] = []
        self._proposed_by: dict[str, int] = {}
        self._replaced = 0
        self._setup: Setup | None = None
        self._started = time.monotonic()
        self._measured_s = 0.0
        self._objective_s = 0.0
        self._cpu_s = 0.0

    def run(self, setup: Setup) -> None:
        """Optimize a study of the job's length."""
        self._setup = setup
        study = optuna.create_study(sampler=setup.sampler)
        write_task(study, setup.task)
        default = setup.evaluator.space.default
        if self._job.default_first and default is not None:
            study.enqueue_trial(default, user_attrs={PROPOSED_BY: DEFAULT})
        objective = KernelObjective(setup.evaluator)
        before_s = time.process_time()

        def timed(trial: optuna.Trial) -> float:
            # Suggesting makes the proposal, so only what follows is the objective's.
            for parameter in setup.evaluator.space.parameters:
                trial.suggest_categorical(parameter.name, parameter.choices)
            begun_s = time.process_time()
            try:
                return objective(trial)
            finally:
                self._objective_s += time.process_time() - begun_s

        try:
            study.optimize(timed, n_trials=self._job.trials, callbacks=[self._note])
        finally:
            self._cpu_s = time.process_time() - before_s - self._objective_s
        if self._job.storage is not None:
            keep_study(study, self._job.storage, f"compare/{self._job.key}")

    def _note(self, _: optuna.Study, trial: FrozenTrial) -> None:
        begun_s = time.process_time()
        setup = self._setup
        assert setup is not None
        if setup.chat is not None and setup.chat.missing:
            raise NothingNewError(setup.chat.missing)
        if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED) or STATUS_ATTRIBUTE not in trial.user_attrs:
            return  # the space was used up
        row = self._space.rows[configuration_key(setup.recorded(trial.params))]
        asks, own = setup.draws.take(trial.params)
        asks += sum(int(call.get("rejected") or 0) for call in trial.user_attrs.get(CALLS, []))
        llm_s = setup.chat.seconds if setup.chat else 0.0
        self._measured_s += self._space.costs_s[row]
        self._rows.append(row)
        self._observed.append(trial.value if trial.state == TrialState.COMPLETE else None)
        self._asks.append(asks + (self._asks[-1] if self._asks else 0))
        self._simulated.append(round(self._measured_s + llm_s, 6))
        name = str(trial.user_attrs.get(PROPOSED_BY, ""))
        if setup.chat is None and name != DEFAULT:
            name = self._job.arm  # the attribute has the name of a class, perhaps of a codec
        self._proposed_by[name] = self._proposed_by.get(name, 0) + 1
        self._replaced += not own
        self._objective_s += time.process_time() - begun_s
        if setup.draws.repeats >= MOST_REPEATS:
            raise NothingNewError(f"proposed nothing new in {MOST_REPEATS} trials in a row")
        if time.monotonic() - self._started > self._job.limit_s:
            raise RunTimeout(timeout_text(self._job))

    def record(self) -> Run:
        """What was taken down."""
        chat = self._setup.chat if self._setup else None
        clock = {"sampler_cpu_s": self._cpu_s, "wall_s": time.monotonic() - self._started}
        return Run(
            key=self._job.key,
            space=self._job.space.name,
            arm=self._job.arm,
            seed=self._job.seed,
            trials=self._job.trials,
            digest=space_digest(self._space),
            rows=self._rows,
            observed_ms=self._observed,
            asks=self._asks,
            simulated_s=self._simulated,
            replaced=self._replaced,
            proposed_by=dict(sorted(self._proposed_by.items())),
            llm_calls=chat.calls if chat else 0,
            llm_tokens=chat.tokens if chat else 0,
            llm_s=round(chat.seconds, 6) if chat else 0.0,
            model=chat.name if chat else "",
            failure=self.failure,
            clock={name: round(value, 3) for name, value in clock.items()},
        )


def timeout_text(job: Job) -> str:
    """What a record says of a run that took too long."""
    return f"took longer than its limit of {job.limit_s:g} s"


def keep_study(study: optuna.Study, url: str, name: str) -> None:
    """Copy a finished study into a database, in place of an earlier one of that name."""
    from llm_sampler.studies.archive import open_storage

    storage = open_storage(url)
    if any(summary.study_name == name for summary in storage.get_all_studies()):
        optuna.delete_study(study_name=name, storage=storage)
    optuna.copy_study(
        from_study_name=study.study_name, from_storage=study._storage, to_storage=storage, to_study_name=name
    )
