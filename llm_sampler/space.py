"""Finite search spaces: parameters with choices, restrictions over them, and a default configuration.

Notation: a *configuration* is a dict from parameter name to value; *facts* are named constants that restrictions
may use beside the parameters (problem sizes, device limits). This module is the vocabulary that kernels,
objectives and samplers share; restrictions are parsed and evaluated here and nowhere else.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from simpleeval import EvalWithCompoundTypes

Value: TypeAlias = bool | int | float | str
Configuration: TypeAlias = dict[str, Value]

_FUNCTIONS = {
    "min": min,
    "max": max,
    "abs": abs,
    "cdiv": lambda a, b: -(-a // b),
    "next_power_of_2": lambda n: 1 << max(0, math.ceil(n) - 1).bit_length(),
    "range": range,
}
_CONSTANTS = {"True": True, "False": False, "None": None}
_MOST_RESULTS = 100_000


class SpaceError(ValueError):
    """A space, a restriction or a configuration that cannot be used; the message says rule, value and remedy."""


def configuration_key(configuration: Mapping[str, Any]) -> str:
    """The one key of a configuration: canonical JSON, equal for equal configurations.

    NumPy scalars are reduced to Python's, names are sorted, and no two types are merged: ``1``, ``1.0`` and ``True``
    are different values.

    Raises:
        SpaceError: A value is not a bool, int, float or str.
    """
    plain = {}
    for name, value in configuration.items():
        scalar = value.item() if hasattr(value, "item") else value
        if scalar is not None and not isinstance(scalar, bool | int | float | str):
            raise SpaceError(f"{name} must be a bool, int, float or str, got {type(value).__name__}")
        plain[name] = scalar
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression over ``names``: arithmetic, comparisons, ``and``/``or``, ``in``, comprehensions.

    Functions: min, max, abs, cdiv, next_power_of_2, range. No attributes, no imports, no other calls (simpleeval).

    Raises:
        SpaceError: The expression cannot be parsed or evaluated.
    """
    return _evaluate(_parse(expression), expression, names)


@functools.lru_cache(maxsize=4096)
def _parse(expression: str) -> ast.expr:
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpaceError(f"not an expression: {expression!r} ({error})") from None
    return tree.body


def _evaluate(node: ast.expr, expression: str, names: Mapping[str, Any]) -> Any:
    evaluator = EvalWithCompoundTypes(names={**_CONSTANTS, **names}, functions=_FUNCTIONS)
    try:
        return evaluator.eval(expression, previously_parsed=node)
    except Exception as error:  # noqa: BLE001 - whatever a foreign expression raises is the caller's one error
        raise SpaceError(f"cannot evaluate {expression!r}: {error}") from None


def _variables(node: ast.expr) -> frozenset[str]:
    names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}  # by a comprehension
    return frozenset({name.id for name in names} - bound - _FUNCTIONS.keys() - _CONSTANTS.keys())


class Restrictions:
    """Expressions over parameters and facts that must all hold.

    Args:
        texts: Expressions, e.g. ``"BLOCK_M * BLOCK_N <= 128 * 32 * num_warps"``.
        facts: Constants that the expressions may use beside the parameters.

    Raises:
        SpaceError: An expression cannot be parsed.
    """

    def __init__(self, texts: Iterable[str] = (), facts: Mapping[str, Value] | None = None) -> None:
        self.texts = tuple(texts)
        self.facts = dict(facts or {})
        self._nodes = [_parse(text) for text in self.texts]
        # Names that each expression reads from a configuration, and its results by their values: an expression
        # over four parameters of seven is evaluated once per combination of those four.
        self.variables = [_variables(node) - self.facts.keys() for node in self._nodes]
        self._results: list[dict[tuple[Any, ...], bool]] = [{} for _ in self.texts]

    def holds(self, index: int, configuration: Mapping[str, Any]) -> bool:
        """Whether restriction ``index`` holds; the configuration must give every variable of it."""
        names = sorted(self.variables[index])
        try:
            values = tuple(configuration[name] for name in names)
        except KeyError as error:
            raise SpaceError(
                f"restriction {self.texts[index]!r} names {error.args[0]!r}, which is neither a parameter nor a "
                f"fact; known: {', '.join(sorted({*configuration, *self.facts}))}"
            ) from None
        results = self._results[index]
        if values not in results:
            if len(results) >= _MOST_RESULTS:  # parameters without a grid never come to the same values again
                results.clear()
            names_and_facts = {**self.facts, **dict(zip(names, values, strict=True))}
            results[values] = bool(_evaluate(self._nodes[index], self.texts[index], names_and_facts))
        return results[values]

    def broken(self, configuration: Mapping[str, Any]) -> list[str]:
        """What does not hold, each as ``text (left side 262144, right side 232448)`` where it is one comparison."""
        return [
            self.explain(index, configuration)
            for index in range(len(self.texts))
            if not self.holds(index, configuration)
        ]

    def explain(self, index: int, configuration: Mapping[str, Any]) -> str:
        """The text of a restriction, with the numbers of both sides where it is one comparison."""
        return self.texts[index] + self._sides(index, configuration)

    def _sides(self, index: int, configuration: Mapping[str, Any]) -> str:
        node = self._nodes[index]
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            return ""
        names = {**self.facts, **configuration}
        left, right = (_evaluate(side, self.texts[index], names) for side in (node.left, node.comparators[0]))
        return f" (left side {left}, right side {right})"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a space.

    Attributes:
        name: As the kernel and the study know it.
        choices: Its values, at least one, all different.
        meaning: One line for people and prompts.
    """

    name: str
    choices: tuple[Value, ...]
    meaning: str = ""

    def __post_init__(self) -> None:
        """Check the choices."""
        if not self.choices:
            raise SpaceError(f"parameter {self.name} needs at least one choice")
        if len({json.dumps(choice) for choice in self.choices}) != len(self.choices):
            raise SpaceError(f"the choices of {self.name} must all be different, got {self.choices}")


@dataclass(frozen=True)
class Space:
    """Parameters, restrictions and a default: what may be measured.

    Attributes:
        parameters: In the order that a study suggests them.
        restrictions: Expressions over parameters and facts that must hold.
        default: The configuration that a study starts with, None where there is none.
        facts: Constants that the restrictions use (problem sizes, device limits).
    """

    parameters: tuple[Parameter, ...]
    restrictions: tuple[str, ...] = ()
    default: Configuration | None = None
    facts: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check names, and that the restrictions use known ones."""
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise SpaceError(f"parameter names must be different, got {names}")
        for text, variables in zip(self.restrictions, self.checker.variables, strict=True):
            if unknown := sorted(variables - set(names)):
                raise SpaceError(
                    f"restriction {text!r} names {', '.join(unknown)}, neither a parameter ({', '.join(names)}) "
                    f"nor a fact ({', '.join(sorted(self.facts)) or 'none given'})"
                )

    @functools.cached_property
    def checker(self) -> Restrictions:
        """The restrictions, parsed."""
        return Restrictions(self.restrictions, self.facts)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        return tuple(parameter.name for parameter in self.parameters)

    def faults(self, configuration: Mapping[str, Any]) -> list[str]:
        """Everything that keeps a configuration from being measured, each in one line; empty if it is allowed."""
        found = [f"unknown parameter {name}" for name in configuration if name not in self.names]
        for parameter in self.parameters:
            if parameter.name not in configuration:
                found.append(f"{parameter.name} is missing")
            elif not _is_choice(configuration[parameter.name], parameter.choices):
                choices = ", ".join(str(choice) for choice in parameter.choices)
                found.append(f"{parameter.name} must be one of ({choices}), got {configuration[parameter.name]!r}")
        return found or self.checker.broken(configuration)

    def allows(self, configuration: Mapping[str, Any]) -> bool:
        """Whether the configuration has exactly this space's parameters, legal choices, and meets every restriction."""
        return not self.faults(configuration)

    def configurations(self) -> Iterator[Configuration]:
        """Every allowed configuration, in lexicographic order of the choices.

        A restriction is checked as soon as its last parameter is bound, so that whole subtrees are skipped.
        """
        position = {name: depth for depth, name in enumerate(self.names)}
        due: list[list[int]] = [[] for _ in range(len(self.parameters) + 1)]
        for index, variables in enumerate(self.checker.variables):
            due[max((position[name] + 1 for name in variables), default=0)].append(index)

        def extend(configuration: Configuration, depth: int) -> Iterator[Configuration]:
            if not all(self.checker.holds(index, configuration) for index in due[depth]):
                return
            if depth == len(self.parameters):
                yield dict(configuration)
                return
            parameter = self.parameters[depth]
            for choice in parameter.choices:
                configuration[parameter.name] = choice
                yield from extend(configuration, depth + 1)
            configuration.pop(parameter.name, None)

        yield from extend({}, 0)

    @functools.cached_property
    def size(self) -> int:
        """How many configurations are allowed."""
        return sum(1 for _ in self.configurations())

    def digest(self) -> str:
        """Eight hexadecimal digits that change when parameters, restrictions or facts do; meanings do not count."""
        text = json.dumps(
            [
                [[parameter.name, parameter.choices] for parameter in self.parameters],
                self.restrictions,
                sorted(self.facts.items()),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def to_json(self) -> dict[str, Any]:
        """As JSON types; ``from_json`` reads it back."""
        return {
            "parameters": [{"name": p.name, "choices": list(p.choices), "meaning": p.meaning} for p in self.parameters],
            "restrictions": list(self.restrictions),
            "default": self.default,
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Space:
        """A space from what ``to_json`` gave.

        Raises:
            SpaceError: The data has another form.
        """
        try:
            return cls(
                parameters=tuple(
                    Parameter(str(p["name"]), tuple(p["choices"]), str(p.get("meaning", "")))
                    for p in data["parameters"]
                ),
                restrictions=tuple(data.get("restrictions", ())),
                default=data.get("default"),
                facts=dict(data.get("facts", {})),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise SpaceError(f"not a space: {error!r}") from None


def _is_choice(value: Any, choices: tuple[Value, ...]) -> bool:
    return any(value == choice and type(value) is type(choice) for choice in choices)
