"""Arms of a comparison: what is compared, by a text like ``tpe/index`` or ``llm/no-source/batch=6``.

The first part names the sampler; the others are switches, or arguments of its class. Every arm proposes through
`DistinctSampler` over the same categorical space. Those that only know numbers see indices of choices (`IndexEncoded`).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from optuna.samplers import BaseSampler

from llm_sampler.space import Space, Value
from llm_sampler.studies.compare_codec import IndexEncoded
from llm_sampler.studies.compare_gp import TableGPSampler
from llm_sampler.studies.compare_searches import BestNeighbours, ExhaustiveOrder
from llm_sampler.studies.compare_space import CompareError
from llm_sampler.studies.samplers import OPTUNA_SAMPLERS, SamplerError, optuna_sampler

Encoding = Literal["categorical", "index"]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)

# Measured on recorded spaces: categorical TPE needs fewer measurements than TPE over indices; CMA-ES leaves categorical
# parameters to random search; a Gaussian process sees that 64 lies between 32 and 128; a Sobol sequence has an order.
_BEST_ENCODING: Mapping[str, Encoding] = {"gp": "index", "cmaes": "index", "qmc": "index"}
# Ranks are all that CMA-ES takes from a value, so that a failure is the worst rank. A Gaussian process also sees the
# constraint that a failure breaks, and logarithms: the slowest configurations are many times slower than the best.
_CODECS: Mapping[str, dict[str, bool]] = {
    "gp": {"log_values": True, "tell_failures": True},
    "cmaes": {"tell_failures": True},
}
# Without scrambling a Sobol sequence is the same for every seed.
_DEFAULTS: Mapping[str, dict[str, Value]] = {"qmc": {"scramble": True}}
# What the codec takes care of, or what a comparison means to do, needs no warning.
_QUIET: Mapping[str, dict[str, bool]] = {name: {"warn_independent_sampling": False} for name in ("cmaes", "gp", "qmc")}
_SEARCHES = ("exhaustive", "neighbours")
LLM_SWITCHES = ("pure", "no-source", "no-device", "no-history", "renamed")
LLM_OPTIONS = ("share", "batch", "simulated")
ARMS = ("llm", *OPTUNA_SAMPLERS, *_SEARCHES)
HUB_PREFIX = "hub:"


@dataclass(frozen=True)
class Arm:
    """One arm.

    Attributes:
        text: As the command line names it.
        name: The sampler's name.
        switches: The parts without a value.
        options: The parts with one.
    """

    text: str
    name: str
    switches: frozenset[str] = frozenset()
    options: Mapping[str, Value] = field(default_factory=dict, hash=False)

    @property
    def is_llm(self) -> bool:
        """Whether a language model is asked."""
        return self.name == "llm"

    @property
    def needs_model(self) -> bool:
        """Whether a model, or a transcript of one, has to be given."""
        return self.is_llm and "simulated" not in self.options

    @property
    def is_expensive(self) -> bool:
        """Whether a trial takes a good part of a second, so that fewer seeds are run."""
        return self.name == "gp"

    @property
    def arguments(self) -> dict[str, Value]:
        """Arguments of the sampler's class."""
        return {**_DEFAULTS.get(self.name, {}), **self.options}

    @property
    def encoding(self) -> Encoding:
        """What the sampler sees of a parameter."""
        for encoding in ENCODINGS:
            if encoding in self.switches:
                return encoding
        return _BEST_ENCODING.get(self.name, "categorical")

    @property
    def description(self) -> str:
        """One line: the class, its encoding, its arguments."""
        class_name = OPTUNA_SAMPLERS[self.name][0] if self.name in OPTUNA_SAMPLERS else self.name
        if self.name == "exhaustive":
            return "every configuration in the order of the choices, cut off; the same for every seed"
        if self.name == "neighbours":
            return "unmeasured one-change neighbours of the best, then of the next best"
        if self.is_llm:
            extra = sorted(self.switches) + [f"{name} {value}" for name, value in self.options.items()]
            return ", ".join(["LLMSampler, waits for every reply", *extra])
        codec = _CODECS.get(self.name, {}) if self.encoding == "index" else {}
        if self.name == "gp" and self.encoding == "index":
            class_name += " over the table of free configurations"
        told = [{"log_values": "log times", "tell_failures": "failures as the worst time"}[name] for name in codec]
        seen = "indices of choices" if self.encoding == "index" else "categorical"
        return ", ".join([class_name, seen, *told, *(f"{name} {value}" for name, value in self.arguments.items())])


def parse_arm(text: str) -> Arm:
    """The arm that a text names.

    Raises:
        CompareError: There is no such sampler, or it does not take a part.
    """
    name, *parts = text.strip().split("/")
    if name not in ARMS and ":" not in name:
        raise CompareError(
            f"a sampler must be one of {', '.join(ARMS)}, hub:NAME, or module:factory, got {text.strip()!r}"
        )
    switches = frozenset(part for part in parts if "=" not in part)
    options = {key: _value(value) for key, _, value in (part.partition("=") for part in parts if "=" in part)}
    allowed = (*LLM_SWITCHES,) if name == "llm" else () if name in _SEARCHES else ENCODINGS
    if unknown := sorted(switches - set(allowed)):
        raise CompareError(f"{name} takes {', '.join(allowed) or 'no switches'}, got {unknown[0]!r}")
    refused = [key for key in options if key not in LLM_OPTIONS] if name == "llm" else []
    if refused or (name in _SEARCHES and options):
        takes = ", ".join(f"{option}=…" for option in LLM_OPTIONS) if name == "llm" else "no arguments"
        raise CompareError(f"{name} takes {takes}, got {next(iter(refused or options))!r}")
    if len(switches & set(ENCODINGS)) > 1:
        raise CompareError(f"{text}: give one encoding, {' or '.join(ENCODINGS)}")
    return Arm(text.strip(), name, switches, options)


def _value(text: str) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def check_arm(arm: Arm) -> None:
    """Make its sampler once, so that what is missing is said before anything runs.

    Raises:
        CompareError: A package is missing, a module cannot be imported, an argument is refused.
    """
    if arm.is_llm or arm.name in _SEARCHES:
        return
    _bare_sampler(arm, seed=0)


def base_sampler(arm: Arm, space: Space, *, seed: int) -> BaseSampler:
    """The sampler of an arm that asks no language model, to be wrapped in `DistinctSampler`.

    Raises:
        CompareError: It cannot be made.
    """
    if arm.name == "exhaustive":
        return ExhaustiveOrder(space)
    if arm.name == "neighbours":
        return BestNeighbours(space, seed=seed)
    if arm.name == "gp" and arm.encoding == "index":
        check_arm(arm)
        base: BaseSampler = TableGPSampler(space, seed=seed, **arm.arguments)
    else:
        base = _bare_sampler(arm, seed=seed)
    return IndexEncoded(base, **_CODECS.get(arm.name, {})) if arm.encoding == "index" else base


def _bare_sampler(arm: Arm, *, seed: int) -> BaseSampler:
    try:
        if arm.name in OPTUNA_SAMPLERS:
            return optuna_sampler(arm.name, seed=seed, **{**_QUIET.get(arm.name, {}), **arm.arguments})
        factory = _hub_class(arm.name) if arm.name.startswith(HUB_PREFIX) else _imported(arm.name)
    except SamplerError as error:
        raise CompareError(str(error)) from None
    seeded = {"seed": seed} if _takes_seed(factory) else {}
    try:
        sampler = factory(**seeded, **arm.arguments)
    except TypeError as error:
        raise CompareError(f"{arm.name}: {error}") from None
    if not isinstance(sampler, BaseSampler):
        raise CompareError(f"{arm.name} must make an Optuna sampler, and makes a {type(sampler).__name__}")
    return sampler


def _takes_seed(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "seed" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _imported(name: str) -> Callable[..., Any]:
    """The object that ``module:attribute`` names."""
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CompareError(f"{name} must be an importable module:factory: {error}") from None
    if not callable(found):
        raise CompareError(f"{name} must be a class or a function that makes a sampler")
    factory: Callable[..., Any] = found
    return factory


def _hub_class(name: str) -> Callable[..., Any]:
    """The sampler class of an OptunaHub package, ``hub:PACKAGE`` or ``hub:PACKAGE:CLASS``."""
    if importlib.util.find_spec("optunahub") is None:
        raise CompareError(f"{name} needs optunahub: pip install optunahub")
    import optunahub

    package, _, class_name = name.removeprefix(HUB_PREFIX).partition(":")
    try:
        module = optunahub.load_module(f"samplers/{package}")
    except Exception as error:  # noqa: BLE001 - no network, no such package, a package that lacks its own packages
        raise CompareError(f"OptunaHub's samplers/{package} cannot be loaded: {error}") from None
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, BaseSampler)
        and not value.__module__.startswith("optuna.")
        and class_name in ("", key)
    }
    if len(classes) != 1:
        found = ", ".join(classes) or "none"
        raise CompareError(f"samplers/{package} must have one sampler class, found {found}: name it, {name}:CLASS")
    factory: Callable[..., Any] = next(iter(classes.values()))
    return factory
