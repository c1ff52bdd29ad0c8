"""`SearchSpace`: the distributions of a study's parameters with restrictions over them, and, if finite, its table.

Notation: a space has P parameters; a *position* is one number per parameter: the index of the choice (or grid point)
where the parameter is finite, the value itself in a range without step. The table of a finite space holds the positions
of its N allowed configurations as rows, an integer array [N, P] in lexicographic order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from llm_sampler.space import Restrictions, Space, SpaceError, Value

Position: TypeAlias = tuple[float, ...]

# A table of 10^6 rows of 10 parameters takes 40 MB and is built within seconds; larger spaces are sampled instead.
_MOST_ROWS = 1_000_000
_MOST_CHOICES = 10_000


class SearchSpace:
    """What a study's trials may be, in terms of Optuna's distributions.

    Args:
        distributions: By parameter name.
        restrictions: Expressions over parameters and facts that must hold; one that names a parameter which a
            configuration lacks is not checked.
        facts: Constants that the restrictions may use.
        declared: Whether somebody said that this is the whole space (an argument, the study's task); otherwise it was
            inferred from finished trials, and nobody promised that the next trial keeps to it.
    """

    def __init__(
        self,
        distributions: Mapping[str, BaseDistribution],
        *,
        restrictions: Iterable[str] = (),
        facts: Mapping[str, Value] | None = None,
        declared: bool = False,
    ) -> None:
        self.distributions = dict(distributions)
        self.names = tuple(self.distributions)
        self.restrictions = Restrictions(restrictions, facts)
        self.declared = declared
        self._codecs = {name: _codec(distribution) for name, distribution in self.distributions.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {
            "distributions": self.distributions,
            "restrictions": self.restrictions.texts,
            "facts": self.restrictions.facts,
            "declared": self.declared,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @classmethod
    def from_space(cls, space: Space) -> SearchSpace:
        """A declared search space: every parameter categorical over its choices."""
        distributions = {p.name: CategoricalDistribution(p.choices) for p in space.parameters}
        return cls(distributions, restrictions=space.restrictions, facts=space.facts, declared=True)

    def check_restrictions(self) -> None:
        """Check that the restrictions use known names and can be evaluated.

        Raises:
            SpaceError: One does not, or fails for the first and for the last value of every parameter.
        """
        for text, variables in zip(self.restrictions.texts, self.restrictions.variables, strict=True):
            if unknown := sorted(variables - set(self.names)):
                raise SpaceError(
                    f"restriction {text!r} names {', '.join(unknown)}, neither a parameter ({', '.join(self.names)}) "
                    f"nor a fact ({', '.join(sorted(self.restrictions.facts)) or 'none given'})"
                )
        first = {name: codec.ends[0] for name, codec in self._codecs.items()}
        last = {name: codec.ends[1] for name, codec in self._codecs.items()}
        for index in range(len(self.restrictions.texts)):
            try:
                self.restrictions.holds(index, first)
            except SpaceError:
                self.restrictions.holds(index, last)

    @functools.cached_property
    def sampled(self) -> dict[str, BaseDistribution]:
        """The distributions that leave a choice; Optuna does not ask samplers about the others."""
        return {name: d for name, d in self.distributions.items() if not d.single()}

    @functools.cached_property
    def single_values(self) -> dict[str, Any]:
        """Values of the parameters that leave no choice."""
        return {name: self._codecs[name].ends[0] for name, d in self.distributions.items() if d.single()}

    def ends_of(self, name: str) -> tuple[Any, Any]:
        """The first and the last value of a parameter."""
        return self._codecs[name].ends

    def size_of(self, name: str) -> int | None:
        """How many values a parameter has, None for a range without step."""
        return self._codecs[name].size

    def values_of(self, name: str) -> tuple[Any, ...] | None:
        """The values of a parameter in order, None where there are more than 10,000."""
        codec = self._codecs[name]
        if codec.size is None or codec.size > _MOST_CHOICES:
            return None
        return tuple(codec.value(index) for index in range(codec.size))

    def position(self, configuration: Mapping[str, Any]) -> Position | None:
        """The position of a configuration, None if it lacks a parameter or has an illegal value.

        Parameters that the space does not have are ignored.
        """
        numbers = []
        for name, codec in self._codecs.items():
            if name not in configuration:
                return None
            number = codec.number(configuration[name])
            if number is None:
                return None
            numbers.append(number)
        return tuple(numbers)

    def configuration(self, position: Position) -> dict[str, Any]:
        """The configuration at a position, made of the choices themselves."""
        return {name: codec.value(number) for (name, codec), number in zip(self._codecs.items(), position, strict=True)}

    def number(self, name: str, value: Any) -> float | None:
        """The number of one parameter's value in a position, None if the value is illegal."""
        return self._codecs[name].number(value)

    def value(self, name: str, number: float) -> Any:
        """The value of one parameter from its number in a position."""
        return self._codecs[name].value(number)

    def allows(self, configuration: Mapping[str, Any]) -> bool:
        """Whether all restrictions hold whose parameters the configuration has.

        A restriction that cannot be evaluated there (a division by zero) does not hold.
        """
        return not self.broken(configuration)

    def broken(self, configuration: Mapping[str, Any]) -> list[str]:
        """The restrictions that do not hold, with the numbers of both sides where they are one comparison."""
        broken = []
        for index, variables in enumerate(self.restrictions.variables):
            if variables <= configuration.keys() and not self._holds(index, configuration):
                try:
                    broken.append(self.restrictions.explain(index, configuration))
                except SpaceError as error:
                    broken.append(str(error))
        return broken

    def _holds(self, index: int, configuration: Mapping[str, Any]) -> bool:
        try:
            return self.restrictions.holds(index, configuration)
        except SpaceError:
            return False

    @functools.cached_property
    def table(self) -> Table | None:
        """Every allowed configuration; None if the space is infinite or has more than a million."""
        sizes = [codec.size for codec in self._codecs.values()]
        if not sizes or any(size is None or size > _MOST_CHOICES for size in sizes):
            return None
        rows = self._allowed_rows([size for size in sizes if size is not None])
        return None if rows is None else Table(rows, [size for size in sizes if size is not None])

    def _allowed_rows(self, sizes: list[int]) -> NDArray[np.int32] | None:
        """The rows of the table [N, P], grown parameter by parameter; a restriction is checked once it is bound."""
        depth_of = {name: depth for depth, name in enumerate(self.names)}
        rows = np.zeros((1, 0), np.int32)
        for depth, size in enumerate(sizes):
            if len(rows) * size > _MOST_ROWS:
                return None
            grown = np.empty((len(rows) * size, depth + 1), np.int32)
            grown[:, :depth] = np.repeat(rows, size, axis=0)
            grown[:, depth] = np.tile(np.arange(size, dtype=np.int32), len(rows))
            rows = grown
            for index, variables in enumerate(self.restrictions.variables):
                columns = sorted(depth_of[name] for name in variables if name in depth_of)
                if len(columns) == len(variables) and max(columns, default=0) == depth:
                    rows = rows[self._mask(index, columns, rows)]
        return rows

    def _mask(self, restriction: int, columns: list[int], rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Where one restriction holds: evaluated once for each combination of the parameters it names."""
        combinations, inverse = np.unique(rows[:, columns], axis=0, return_inverse=True)
        codecs = [(self.names[column], self._codecs[self.names[column]]) for column in columns]
        holds = np.fromiter(
            (
                self._holds(restriction, {n: c.value(int(i)) for (n, c), i in zip(codecs, row, strict=True)})
                for row in combinations
            ),
            bool,
            len(combinations),
        )
        masked: NDArray[np.bool_] = holds[inverse.reshape(-1)]
        return masked


class Table:
    """The allowed configurations of a finite space.

    Args:
        rows: Positions [N, P] in lexicographic order.
        sizes: Choices of each parameter [P].
    """

    def __init__(self, rows: NDArray[np.int32], sizes: list[int]) -> None:
        self.rows = rows
        # Mixed radix: one integer per row, ascending. Python integers where 64 bits do not hold them.
        strides = [math.prod(sizes[depth + 1 :]) for depth in range(len(sizes))]
        wide = math.prod(sizes) > 2**62
        self._strides = strides
        self._codes: NDArray[Any] = rows.astype(object if wide else np.int64) @ np.array(
            strides, dtype=object if wide else np.int64
        )

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, position: Position) -> int | None:
        """The row of a position, None if it is not allowed."""
        code = sum(int(number) * stride for number, stride in zip(position, self._strides, strict=True))
        row = int(np.searchsorted(self._codes, code))
        return row if row < len(self._codes) and self._codes[row] == code else None

    def position(self, row: int) -> Position:
        """The position of a row."""
        return tuple(float(number) for number in self.rows[row])

    def distances(self, near: Position) -> NDArray[np.int16]:
        """In how many parameters each row differs from a position [N]."""
        found = np.zeros(len(self.rows), np.int16)
        for column, number in enumerate(near):  # five times as fast as one comparison of [N, P]
            found += self.rows[:, column] != int(number)
        return found


class _Codec:
    """Numbers for the values of one parameter.

    Attributes:
        size: How many values there are, None for a range without step.
        number: The number of a value, None if it is illegal.
        value: The value of a number.
        ends: The first and the last value.
    """

    def __init__(
        self,
        size: int | None,
        number: Callable[[Any], float | None],
        value: Callable[[float], Any],
        ends: tuple[Any, Any],
    ) -> None:
        self.size = size
        self.number = number
        self.value = value
        self.ends = ends


def _codec(distribution: BaseDistribution) -> _Codec:
    if isinstance(distribution, CategoricalDistribution):
        return _choice_codec(distribution)
    if isinstance(distribution, IntDistribution):
        return _grid_codec(distribution.low, distribution.high, distribution.step, int)
    if isinstance(distribution, FloatDistribution) and distribution.step is not None:
        return _grid_codec(distribution.low, distribution.high, distribution.step, float)
    if isinstance(distribution, FloatDistribution):
        return _range_codec(distribution.low, distribution.high)
    raise SpaceError(f"a distribution must be Optuna's float, int or categorical, got {type(distribution).__name__}")


def _choice_codec(distribution: CategoricalDistribution) -> _Codec:
    choices = distribution.choices

    def number(value: Any) -> float | None:
        try:
            return float(distribution.to_internal_repr(value))
        except (ValueError, TypeError):
            return None

    return _Codec(len(choices), number, lambda index: choices[int(index)], (choices[0], choices[-1]))


def _grid_codec(low: float, high: float, step: float, kind: type[int] | type[float]) -> _Codec:
    size = math.floor((high - low) / step + 1e-9) + 1

    def number(value: Any) -> float | None:
        real = _real(value)
        if real is None:
            return None
        index = round((real - low) / step)
        on_grid = abs(low + index * step - real) <= 1e-6 * step
        return float(index) if on_grid and 0 <= index < size else None

    # Clipped, as Optuna does: low + index * step may exceed high by a rounding error.
    def value(index: float) -> float:
        return kind(min(low + int(index) * step, high))

    return _Codec(size, number, value, (value(0), value(size - 1)))


def _range_codec(low: float, high: float) -> _Codec:
    def number(value: Any) -> float | None:
        real = _real(value)
        return real if real is not None and low <= real <= high else None

    return _Codec(1 if low == high else None, number, float, (low, high))


def _real(value: Any) -> float | None:
    """A finite float, None for anything else."""
    try:
        real = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return real if math.isfinite(real) else None


def random_number(space: SearchSpace, name: str, rng: np.random.Generator) -> float:
    """A number of one parameter, uniformly at random (log-uniformly where the distribution is)."""
    distribution, size = space.distributions[name], space.size_of(name)
    if getattr(distribution, "log", False):
        low, high = space.ends_of(name)
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
        number = space.number(name, value if size is None else min(max(round(value), low), high))
        return space.number(name, low) or 0.0 if number is None else number
    return float(rng.uniform(*space.ends_of(name))) if size is None else float(rng.integers(size))


def step_from(space: SearchSpace, name: str, number: float, share: float) -> float:
    """A number of one numeric parameter, a share of its width away (of its logarithm's where it is logarithmic)."""
    distribution, size = space.distributions[name], space.size_of(name)
    low, high = space.ends_of(name)
    value = space.value(name, number)
    if getattr(distribution, "log", False):
        moved = math.exp(math.log(value) + share * math.log(high / low))
    else:
        moved = value + share * (high - low)
    moved = min(max(moved, low), high)
    if size is None:
        return float(moved)
    step = getattr(distribution, "step", None) or 1
    return float(min(round((moved - low) / step), size - 1))
