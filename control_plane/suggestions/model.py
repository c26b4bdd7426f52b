"""The model of a Bayesian search: Optuna's tree-structured Parzen estimator.

Optuna is imported with the first suggestion, because Optuna is an optional package and takes a
quarter of a second to import. A hyperparameter space is passed to Optuna as flat coordinates, in
the order of the sorted names, nested groups depth first:

    int          the offset from minval
    double       the value
    log          the exponent, so that powers of the base are evenly spaced
    categorical  the index in vals, which may be any JSON values

Hyperparameters with only one possible value are left out.
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
    """The stage of a trial."""

    RUNNING = "running"
    """The trial has not ended and has not reached the full length."""
    COMPLETE = "complete"
    """The trial reached the full length."""
    STOPPED = "stopped"
    """The trial ended before the full length."""


class Observation(NamedTuple):
    """A trial's data for the model."""

    hparams: Mapping[str, Any]
    """JSON values by name."""
    stage: Stage
    metric: float | None = None
    """The trial's best validation metric. None without a validation."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A search's settings for the model."""

    space: Group
    maxval_drawn: bool
    """Whether an integer can equal `maxval`."""
    smaller_is_better: bool
    seed: int
    """The experiment's seed, of 32 bits."""


def suggest_point(
    problem: Problem, observations: Sequence[Observation], number: int
) -> dict[str, object]:
    """Return suggested hyperparameters by name. The same arguments return the same suggestion.

    A running trial counts as a bad result, so that concurrent suggestions differ. A stopped trial
    counts as worse than all complete trials.

    Args:
        observations: the trials of the search, in the order of the trials' numbers.
        number: the number of the request, which selects the random numbers of the model.

    Raises:
        ImportError: Optuna is not installed.
    """
    import optuna

    axes = dict(_axes(problem.space, problem.maxval_drawn, ()))
    if not axes:
        return _build_point(problem.space, (), {})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Optuna warns about experimental arguments, but all supported versions have these arguments.
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
    """The base class of the coordinates of hyperparameters in the model."""

    def distribution(self) -> Any:
        """Return Optuna's distribution for the coordinate."""
        raise AssertionError

    def to_coordinate(self, value: Any) -> float | int:
        """Return the coordinate of a hyperparameter's value. Numbers out of range are clamped.

        Raise ValueError for a categorical value that is not one of the possible values.
        """
        raise AssertionError

    def to_value(self, coordinate: Any) -> object:
        """Return the hyperparameter's value for a coordinate, within the range of the space."""
        raise AssertionError


@dataclass(frozen=True, slots=True)
class _IntegerAxis(_Axis):
    """An integer in [minval, minval + span]."""

    minval: int
    span: int

    def distribution(self) -> Any:
        from optuna.distributions import IntDistribution

        return IntDistribution(0, self.span)

    def to_coordinate(self, value: Any) -> int:
        return self._clamp(value - self.minval)

    def to_value(self, coordinate: Any) -> int:
        # For a span above 2^53, Optuna may return slightly larger values, because of rounding.
        return self.minval + self._clamp(coordinate)

    def _clamp(self, offset: int) -> int:
        return min(max(offset, 0), self.span)


@dataclass(frozen=True, slots=True)
class _RealAxis(_Axis):
    """A number in [minval, maxval) or, with `base`, an exponent in that range."""

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
        # A power that is too small for a float is stored as 0.
        return (math.log(value) if value > 0 else -math.inf) / math.log(self.base)


@dataclass(frozen=True, slots=True)
class _CategoricalAxis(_Axis):
    """A choice from `vals`."""

    vals: tuple[object, ...]

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.vals)))

    def to_coordinate(self, value: Any) -> int:
        # Compared as JSON, because Python's 1, 1.0 and True are equal.
        encoded_vals = [dumps(val, sort_keys=True) for val in self.vals]
        return encoded_vals.index(dumps(value, sort_keys=True))

    def to_value(self, coordinate: Any) -> object:
        return self.vals[coordinate]


def _axes(group: Group, maxval_drawn: bool, path: Path) -> Iterator[tuple[Path, _Axis]]:
    """Yield the path and the axis of each hyperparameter with at least two possible values."""
    for name in sorted(group.members):
        member = group.members[name]
        if isinstance(member, Group):
            yield from _axes(member, maxval_drawn, (*path, name))
        elif (axis := _axis(member, maxval_drawn)) is not None:
            yield (*path, name), axis


def _axis(parameter: Const | Int | Double | Log | Categorical, maxval_drawn: bool) -> _Axis | None:
    """Return the axis of a hyperparameter. None if only one value is possible."""
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
    """Return Optuna's name for a coordinate; different paths have different names."""
    return dumps(path)


def _to_optuna_trial(
    axes: Mapping[Path, _Axis], distributions: Any, observation: Observation
) -> Any:
    """Return an Optuna trial for an observation.

    A stopped trial, or a complete trial without a metric, becomes a pruned trial.
    """
    from optuna.trial import TrialState, create_trial

    params = {
        _axis_name(path): axis.to_coordinate(_value_at(observation.hparams, path))
        for path, axis in axes.items()
    }
    metric = observation.metric
    # Optuna ranks pruned trials after complete trials, and pruned trials without a report last.
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
    """Return hyperparameters by name, from values by path. `path` is the path of the group."""
    return {
        name: _parameter_value(group.members[name], (*path, name), values)
        for name in sorted(group.members)
    }


def _parameter_value(parameter: Parameter, path: Path, values: Mapping[Path, object]) -> object:
    """Return the value at `path`. Without such a value, return the only possible value."""
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
