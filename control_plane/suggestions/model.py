"""The model of a Bayesian search: Optuna's tree-structured Parzen estimator over our spaces.

Optuna is imported with the first suggestion only, since it is an optional package and takes a
quarter of a second to import. It is given a space as flat coordinates, in the order of the sorted
names, nested groups depth first:

    int          the offset from minval
    double       the value
    log          the exponent, so that powers of the base are evenly spaced
    categorical  the index in vals, which may be any JSON values

Hyperparameters with one possible value are not given to the model.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from json import dumps
from typing import Any, NamedTuple, assert_never
from zlib import crc32

from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Log, Parameter

Path = tuple[str, ...]


class Stage(Enum):
    """The progress of a trial: it trains, it reached its length, or it ended before."""

    RUNNING = "running"
    COMPLETE = "complete"
    STOPPED = "stopped"


class Observation(NamedTuple):
    """A trial as the model sees it. `metric` is its best validation, None if it has none."""

    hparams: Mapping[str, Any]
    stage: Stage
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """The search that suggestions are for. `maxval_drawn`: integers can be their maxval; `seed` has
    32 bits.
    """

    space: Group
    maxval_drawn: bool
    smaller_is_better: bool
    seed: int


def suggest_point(
    problem: Problem, observations: Sequence[Observation], number: int
) -> dict[str, object]:
    """Suggest a point as the answer to request `number`, given the trials in the order of their
    numbers. The same arguments give the same point.

    A running trial counts as a bad one, so that concurrent trials differ; one that stopped early
    counts as worse than all that did not. Raises ImportError without Optuna.
    """
    import optuna

    axes = dict(_axes(problem.space, problem.maxval_drawn, ()))
    if not axes:
        return _build_point(problem.space, (), {})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Some versions warn about experimental arguments; the supported versions have them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=0,
            multivariate=True,
            constant_liar=True,
            seed=crc32(f"{problem.seed}/{number}".encode()),
        )
        study = optuna.create_study(
            direction="minimize" if problem.smaller_is_better else "maximize", sampler=sampler
        )
        distributions = {_axis_name(path): axis.distribution() for path, axis in axes.items()}
        for observation in observations:
            study.add_trial(_to_optuna_trial(axes, distributions, observation))
        params = study.ask(distributions).params
    return _build_point(
        problem.space, (), {path: axes[path].to_value(params[_axis_name(path)]) for path in axes}
    )


class _Axis:
    """A coordinate of the model: Optuna's distribution of it, and the conversions of values."""

    def distribution(self) -> Any:
        raise AssertionError

    def to_coordinate(self, value: Any) -> float | int:
        """The coordinate of a value. A value that an earlier space allowed is moved inside."""
        raise AssertionError

    def to_value(self, coordinate: Any) -> object:
        raise AssertionError


@dataclass(frozen=True, slots=True)
class _IntegerAxis(_Axis):
    minval: int
    span: int

    def distribution(self) -> Any:
        from optuna.distributions import IntDistribution

        return IntDistribution(0, self.span)

    def to_coordinate(self, value: Any) -> int:
        return self._clamp(value - self.minval)

    def to_value(self, coordinate: Any) -> int:
        # In a span beyond the integers that a float holds, the model may exceed it a little.
        return self.minval + self._clamp(coordinate)

    def _clamp(self, offset: int) -> int:
        return min(max(offset, 0), self.span)


@dataclass(frozen=True, slots=True)
class _RealAxis(_Axis):
    """A range [minval, maxval) of a double or, with a base, of an exponent."""

    minval: float
    maxval: float
    base: float | None = None

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.minval, self.maxval)

    def to_coordinate(self, value: Any) -> float:
        return min(max(self._exponent(float(value)), self.minval), self.maxval)

    def to_value(self, coordinate: Any) -> float:
        inside = min(float(coordinate), math.nextafter(self.maxval, self.minval))
        return inside if self.base is None else math.pow(self.base, inside)

    def _exponent(self, value: float) -> float:
        if self.base is None:
            return value
        # A power can be too small for a float.
        return (math.log(value) if value > 0 else -math.inf) / math.log(self.base)


@dataclass(frozen=True, slots=True)
class _CategoricalAxis(_Axis):
    vals: tuple[object, ...]

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.vals)))

    def to_coordinate(self, value: Any) -> int:
        # As JSON, where 1, 1.0 and true are three values.
        encoded_vals = [dumps(val, sort_keys=True) for val in self.vals]
        return encoded_vals.index(dumps(value, sort_keys=True))

    def to_value(self, coordinate: Any) -> object:
        return self.vals[coordinate]


def _axes(group: Group, maxval_drawn: bool, path: Path) -> Iterator[tuple[Path, _Axis]]:
    """The axes of a space, by the path of each hyperparameter."""
    for name in sorted(group.members):
        member = group.members[name]
        if isinstance(member, Group):
            yield from _axes(member, maxval_drawn, (*path, name))
        elif (axis := _axis(member, maxval_drawn)) is not None:
            yield (*path, name), axis


def _axis(parameter: Const | Int | Double | Log | Categorical, maxval_drawn: bool) -> _Axis | None:
    match parameter:
        case Int(minval, maxval) if (span := maxval - minval - (not maxval_drawn)) > 0:
            return _IntegerAxis(minval, span)
        case Double(minval, maxval):
            return _RealAxis(minval, maxval)
        case Log(base, minval, maxval) if base != 1:
            return _RealAxis(minval, maxval, base)
        case Categorical(vals) if len(vals) > 1:
            return _CategoricalAxis(vals)
        case _:
            return None


def _axis_name(path: Path) -> str:
    return dumps(path)


def _to_optuna_trial(
    axes: Mapping[Path, _Axis], distributions: Any, observation: Observation
) -> Any:
    from optuna.trial import TrialState, create_trial

    params = {
        _axis_name(path): axis.to_coordinate(_value_at(observation.hparams, path))
        for path, axis in axes.items()
    }
    metric = observation.metric
    # Pruned trials rank after complete ones, and those without a report come last.
    reported = {} if metric is None else {1: metric}
    match observation.stage:
        case Stage.RUNNING:
            state, reported = TrialState.RUNNING, {}
        case Stage.COMPLETE if metric is not None:
            state = TrialState.COMPLETE
        case _:
            state = TrialState.PRUNED
    return create_trial(
        state=state,
        value=metric if state is TrialState.COMPLETE else None,
        params=params,
        distributions=distributions,
        intermediate_values=reported,
    )


def _value_at(hparams: Any, path: Path) -> Any:
    for name in path:
        hparams = hparams[name]
    return hparams


def _build_point(group: Group, path: Path, values: Mapping[Path, object]) -> dict[str, object]:
    return {
        name: _parameter_value(group.members[name], (*path, name), values)
        for name in sorted(group.members)
    }


def _parameter_value(parameter: Parameter, path: Path, values: Mapping[Path, object]) -> object:
    if path in values:
        return values[path]
    match parameter:
        case Group():
            return _build_point(parameter, path, values)
        case Const(value):
            return value
        case Categorical(vals):
            return vals[0]
        case Int(minval) | Double(minval):
            return minval
        case Log(base, minval):
            return math.pow(base, minval)
        case _:
            assert_never(parameter)
