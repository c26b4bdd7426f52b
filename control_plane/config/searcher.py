"""The searcher section: which search, judged by which metric, over how long.

Each search has one model per era, because the eras name lengths differently. The first length of a
model is how long one trial trains at most; its unit is the unit of the experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import (
    ConfigDict,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
)

from control_plane.config.eras import Era
from control_plane.config.lengths import Length, LengthUnit, Measured, Steps
from control_plane.config.section import Count, CountOrZero, Section, Text, choose, refuse, scope_of

TRIALS_MAX: Final = 1_000_000
SIMPLE_TRIALS_MAX: Final = 2_000
POPULATION_MAX: Final = 10_000
STEP_BUDGET_MAX: Final = 50_000
# More rungs than this only add empty brackets: the divisor's power leaves every float behind.
RUNGS_MAX: Final = 100

MAX_LENGTH_HINT: Final = (
    "how long a trial trains, like {batches: 100}; in the step era max_steps or target_trial_steps"
)

MaxLength = Annotated[Measured, Field(description=MAX_LENGTH_HINT)]
Trials = Annotated[int, Field(ge=1, le=TRIALS_MAX)]
Members = Annotated[int, Field(ge=1, le=POPULATION_MAX)]
Rungs = Annotated[int, Field(ge=1, le=RUNGS_MAX)]
Brackets = Annotated[tuple[Rungs, ...], Field(strict=False, max_length=RUNGS_MAX)]
Divisor = Annotated[float, Field(gt=1)]
Mode = Literal["aggressive", "standard", "conservative"]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Searcher(Section):
    """What every search shares. Of the two sources of a first checkpoint the trial wins."""

    name: str
    """Which search."""
    metric: Text
    """The validation metric that trials are judged by."""
    smaller_is_better: bool = True
    """Whether less of the metric is better."""
    source_trial_id: Count | None = None
    """A trial whose latest checkpoint the trials start from: its weights, and nothing else of it.
    """
    source_checkpoint_uuid: Text | None = None
    """A checkpoint to start from, instead; the beginning of its UUID will do."""

    def lengths(self) -> dict[str, Length]:
        """Every length by its field; a trial's longest training comes first."""
        return {name: value for name, value in self if isinstance(value, Length)}


class RandomTrials(Searcher):
    """A number of trials that the space is sampled for."""

    max_trials: Trials
    """How many hyperparameter settings are tried."""


class Suggested(RandomTrials):
    """Trials of which most are suggested by a model of the results so far."""

    max_concurrent_trials: Count = 16
    """Trials at a time; the fewer, the more the model knows when it suggests one."""
    startup_trials: Count = 10
    """Results that come in before the model is asked; until then hyperparameters are drawn."""


class Halving(Searcher):
    """Rungs of trials, of which one in `divisor` goes on."""

    num_rungs: Rungs
    """Times that trials are compared."""
    divisor: Divisor = 4.0
    """One in so many goes on from a rung."""


class Adaptive(Searcher):
    """Several halvings side by side, chosen by mode or listed."""

    divisor: Divisor = 4.0
    """One in so many goes on from a rung."""
    mode: Mode = "standard"
    """How early trials are stopped."""
    max_rungs: Rungs = 5
    """Times at most that trials are compared."""


class Truncation(Section):
    """Which share of a population is replaced by copies of as many best ones."""

    truncate_fraction: Annotated[float, Field(ge=0, le=0.5)]
    """Share of the population that is replaced after a round."""


class Exploration(Section):
    """How the hyperparameters of a copy are changed."""

    resample_probability: Fraction
    """Chance that a hyperparameter is drawn anew."""
    perturb_factor: Fraction
    """By which share the others are raised or lowered."""


class Population(Searcher):
    """A population whose worst are replaced by altered copies of its best, round by round."""

    population_size: Members
    """Trials in a round."""
    num_rounds: Count
    """Rounds."""
    replace_function: Truncation
    """`{truncate_fraction: ...}`: which are replaced."""
    explore_function: Exploration
    """`{resample_probability: ..., perturb_factor: ...}`: how copies are changed."""


class StepSingle(Searcher):
    """One trial."""

    name: Literal["single"]
    max_steps: Steps
    """Steps that a trial trains."""


class StepRandom(RandomTrials):
    """Trials sampled from the space."""

    name: Literal["random"]
    max_steps: Steps
    """Steps that a trial trains."""


class StepGrid(Searcher):
    """One trial for every point of the grid."""

    name: Literal["grid"]
    max_steps: Steps
    """Steps that a trial trains."""


class StepBayesian(Suggested):
    """Trials suggested by a model of the results so far, a number of them at a time."""

    name: Literal["bayesian"]
    max_steps: Steps
    """Steps that a trial trains."""


class StepSyncHalving(Halving):
    """Halving that waits for a whole rung."""

    name: Literal["sync_halving"]
    target_trial_steps: Steps
    """Steps that a trial trains at most."""
    step_budget: Steps
    """Steps of all trials together."""
    train_stragglers: bool = True
    """Whether trials that a rung left behind are trained to its end."""


class StepAsyncHalving(Halving, RandomTrials):
    """Halving that promotes as results come in."""

    name: Literal["async_halving"]
    target_trial_steps: Steps
    """Steps that a trial trains at most."""
    max_concurrent_trials: CountOrZero = 0
    """Trials at a time; 0 leaves it to the search."""


class StepAdaptive(Adaptive):
    """Synchronous halvings that share a budget."""

    name: Literal["adaptive"]
    target_trial_steps: Steps
    """Steps that a trial trains at most."""
    step_budget: Steps
    """Steps of all trials together."""
    bracket_rungs: Brackets = ()
    """Rungs of each bracket, instead of those of the mode."""
    train_stragglers: bool = True
    """Whether trials that a rung left behind are trained to its end."""

    @field_validator("step_budget")
    @classmethod
    def _check_budget(cls, budget: Length, info: ValidationInfo) -> Length:
        if budget.count > STEP_BUDGET_MAX:
            refuse(f"must be at most {STEP_BUDGET_MAX}, not {budget.count}")
        return check_budget(budget, info.data.get("target_trial_steps"), "target_trial_steps")


class StepAdaptiveSimple(Adaptive):
    """Synchronous halvings that share a number of trials."""

    name: Literal["adaptive_simple"]
    max_steps: Steps
    """Steps that a trial trains at most."""
    max_trials: Annotated[int, Field(ge=1, le=SIMPLE_TRIALS_MAX)]
    """How many hyperparameter settings are tried."""


class StepAdaptiveAsha(Adaptive, RandomTrials):
    """Asynchronous halvings side by side."""

    name: Literal["adaptive_asha"]
    target_trial_steps: Steps
    """Steps that a trial trains at most."""
    bracket_rungs: Brackets = ()
    """Rungs of each bracket, instead of those of the mode."""
    max_concurrent_trials: CountOrZero = 0
    """Trials at a time; 0 leaves it to the search."""


class StepPbt(Population):
    """Population-based training."""

    name: Literal["pbt"]
    steps_per_round: Steps
    """Steps that each trial trains in a round."""


class LengthSingle(Searcher):
    """One trial."""

    name: Literal["single"]
    max_length: MaxLength
    """How long a trial trains: {batches: n}, {records: n} or {epochs: n}."""


class LengthRandom(RandomTrials):
    """Trials sampled from the space, a number of them at a time."""

    name: Literal["random"]
    max_length: MaxLength
    """How long a trial trains: {batches: n}, {records: n} or {epochs: n}."""
    max_concurrent_trials: CountOrZero = 16
    """Trials at a time; 0 is no limit."""


class LengthBayesian(Suggested):
    """Trials suggested by a model of the results so far, a number of them at a time."""

    name: Literal["bayesian"]
    max_length: MaxLength
    """How long a trial trains: {batches: n}, {records: n} or {epochs: n}."""


class LengthGrid(Searcher):
    """One trial for every point of the grid, a number of them at a time."""

    name: Literal["grid"]
    max_length: MaxLength
    """How long a trial trains: {batches: n}, {records: n} or {epochs: n}."""
    max_concurrent_trials: CountOrZero = 16
    """Trials at a time; 0 is no limit."""


class Asynchronous(RandomTrials):
    """Measures a trial by max_length, or by max_time in terms of a reported time metric."""

    max_time: Count | None = None
    """How long a trial trains at most, in the unit of `time_metric`; instead of max_length."""
    time_metric: Text | None = Field(default=None, validate_default=True)
    """The reported metric that tells how long a trial has trained."""
    max_length: Measured | None = Field(default=None, validate_default=True)
    """How long a trial trains at most: {batches: n}, {records: n} or {epochs: n}."""
    max_concurrent_trials: CountOrZero = 16
    """Trials at a time; 0 leaves it to the search."""
    stop_once: bool = False
    """Whether trials are stopped rather than promoted."""

    @field_validator("time_metric")
    @classmethod
    def _check_time(cls, time_metric: str | None, info: ValidationInfo) -> str | None:
        if time_metric is None and info.data.get("max_time") is not None:
            refuse("is required beside max_time", "the metric that max_time is compared with")
        return time_metric

    @field_validator("max_length")
    @classmethod
    def _check_measure(cls, max_length: Length | None, info: ValidationInfo) -> Length | None:
        if max_length is None and info.data.get("max_time", "refused") is None:
            refuse("is required", f"{MAX_LENGTH_HINT}, or give max_time and time_metric")
        return max_length


class LengthAsyncHalving(Halving, Asynchronous):
    """Halving that promotes, or stops (`stop_once`), as results come in."""

    name: Literal["async_halving"]


class LengthAdaptiveAsha(Adaptive, Asynchronous):
    """Asynchronous halvings side by side."""

    name: Literal["adaptive_asha"]
    bracket_rungs: Brackets = ()
    """Rungs of each bracket, instead of those of the mode."""


class Budgeted(Searcher):
    """Trials that share a budget of training, in the unit of max_length."""

    max_length: MaxLength
    """How long a trial trains at most: {batches: n}, {records: n} or {epochs: n}."""
    budget: Measured
    """Training of all trials together, in the unit of max_length."""

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, budget: Length, info: ValidationInfo) -> Length:
        target = info.data.get("max_length")
        if target is not None and budget.unit != target.unit:
            refuse(f"must be in {target.unit}, like max_length, not in {budget.unit}")
        return budget


class LengthSyncHalving(Halving, Budgeted):
    """Halving that waits for a whole rung."""

    name: Literal["sync_halving"]
    train_stragglers: bool = True
    """Whether trials that a rung left behind are trained to its end."""


class LengthAdaptive(Adaptive, Budgeted):
    """Synchronous halvings that share a budget."""

    name: Literal["adaptive"]
    bracket_rungs: Brackets = ()
    """Rungs of each bracket, instead of those of the mode."""
    train_stragglers: bool = True
    """Whether trials that a rung left behind are trained to its end."""

    @field_validator("budget")
    @classmethod
    def _check_above(cls, budget: Length, info: ValidationInfo) -> Length:
        return check_budget(budget, info.data.get("max_length"), "max_length")


class LengthAdaptiveSimple(Adaptive):
    """Synchronous halvings that share a number of trials."""

    name: Literal["adaptive_simple"]
    max_length: MaxLength
    """How long a trial trains at most: {batches: n}, {records: n} or {epochs: n}."""
    max_trials: Annotated[int, Field(ge=1, le=SIMPLE_TRIALS_MAX)]
    """How many hyperparameter settings are tried."""


class LengthPbt(Population):
    """Population-based training."""

    name: Literal["pbt"]
    length_per_round: Measured
    """How long each trial trains in a round."""


class Custom(Searcher):
    """A search that the user's own process drives; its other fields are not checked."""

    model_config = ConfigDict(extra="allow")

    name: Literal["custom"]
    unit: LengthUnit | None = None
    """The unit of its lengths."""


SEARCHERS: Final[Mapping[Era, Mapping[str, type[Searcher]]]] = MappingProxyType(
    {
        Era.STEP: {
            "single": StepSingle,
            "random": StepRandom,
            "grid": StepGrid,
            "bayesian": StepBayesian,
            "sync_halving": StepSyncHalving,
            "async_halving": StepAsyncHalving,
            "adaptive": StepAdaptive,
            "adaptive_simple": StepAdaptiveSimple,
            "adaptive_asha": StepAdaptiveAsha,
            "pbt": StepPbt,
        },
        Era.LENGTH: {
            "single": LengthSingle,
            "random": LengthRandom,
            "grid": LengthGrid,
            "bayesian": LengthBayesian,
            "sync_halving": LengthSyncHalving,
            "async_halving": LengthAsyncHalving,
            "adaptive": LengthAdaptive,
            "adaptive_simple": LengthAdaptiveSimple,
            "adaptive_asha": LengthAdaptiveAsha,
            "pbt": LengthPbt,
            "custom": Custom,
        },
    }
)


def check_budget(budget: Length, target: Length | None, target_field: str) -> Length:
    """Refuse a budget that trains no trial to the end and another one a little."""
    if target is not None and budget.unit == target.unit and budget.count <= target.count:
        refuse(f"must be greater than {target_field} ({target.count}), not {budget.count}")
    return budget


def _searcher(value: object, info: ValidationInfo) -> Searcher:
    return choose(value, "name", SEARCHERS[scope_of(info).rules.era], info)


NO_SEARCHER: Final = Searcher(name="", metric="none")
"""Stands where a configuration has none, which no checked one does."""

AnySearcher = Annotated[SerializeAsAny[Searcher], PlainValidator(_searcher)]
