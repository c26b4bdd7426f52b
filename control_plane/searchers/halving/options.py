"""Options that the searchers which compare trials at rungs share, and what is wrong with some."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Le, MaxLen

from control_plane.field_types import (
    MAX_LENGTH_HINT,
    Count,
    CountOrZero,
    CrossCheck,
    Length,
    ListInput,
    MaxLength,
    Measured,
    Text,
    ValueRefused,
)
from control_plane.findings import Finding, Loc, shown_count
from control_plane.searchers.options import TRIALS_MAX, SearcherOptions, TrialCountOptions

SIMPLE_TRIALS_MAX: Final = 2_000
# More rungs than this only add empty brackets: the divisor's power leaves every float behind.
RUNGS_MAX: Final = 100

Rungs = Annotated[int, Ge(1), Le(RUNGS_MAX)]
Brackets = Annotated[tuple[Rungs, ...], ListInput(), MaxLen(RUNGS_MAX)]
Divisor = Annotated[float, Gt(1)]
Mode = Literal["aggressive", "standard", "conservative"]
FewTrials = Annotated[int, Ge(1), Le(SIMPLE_TRIALS_MAX)]


def check_budget_unit(budget: Length, above: Mapping[str, Any]) -> None:
    """Refuse a budget in another unit than `max_length`."""
    target = above.get("max_length")
    if target is not None and budget.unit != target.unit:
        raise ValueRefused(f"must be in {target.unit}, like max_length, not in {budget.unit}")


def check_budget_size(budget: Length, target: Length | None, target_field: str) -> None:
    """Refuse a budget that trains no trial to the end and another one a little."""
    if target is not None and budget.unit == target.unit and budget.count <= target.count:
        message = f"must be greater than {target_field} ({target.count}), not {budget.count}"
        raise ValueRefused(message)


def _check_time_metric(time_metric: str | None, above: Mapping[str, Any]) -> None:
    if time_metric is None and above.get("max_time") is not None:
        raise ValueRefused(
            "is required with max_time", "name the metric that max_time is compared with"
        )


def _check_measure(max_length: Length | None, above: Mapping[str, Any]) -> None:
    if max_length is None and above.get("max_time", "refused") is None:
        raise ValueRefused("is required", f"{MAX_LENGTH_HINT}, or give max_time and time_metric")


class HalvingOptions(SearcherOptions):
    """Rungs, from each of which one in `divisor` trials goes on."""

    num_rungs: Rungs
    """The number of times that trials are compared."""
    divisor: Divisor = 4.0
    """The reduction factor: one in this many trials is promoted from a rung."""


class AdaptiveOptions(SearcherOptions):
    """Several halvings side by side, chosen by mode or listed."""

    divisor: Divisor = 4.0
    """The reduction factor: one in this many trials is promoted from a rung."""
    mode: Mode = "standard"
    """How early trials are stopped."""
    max_rungs: Rungs = 5
    """The largest number of times that trials are compared."""


class AsynchronousOptions(TrialCountOptions):
    """Measures a trial by max_length, or by max_time in terms of a reported time metric."""

    max_time: Count | None = None
    """How long a trial trains at most, in the unit of `time_metric`; instead of max_length."""
    time_metric: Annotated[Text | None, CrossCheck(_check_time_metric)] = None
    """The reported metric that tells how long a trial has trained."""
    max_length: Annotated[Measured | None, CrossCheck(_check_measure)] = None
    """How long a trial trains at most: {batches: n}, {records: n} or {epochs: n}."""
    max_concurrent_trials: CountOrZero = 16
    """The number of trials at a time; with 0 the search decides."""
    stop_once: bool = False
    """Whether trials are stopped rather than promoted."""

    @property
    def trial_time_metric(self) -> str:
        """The metric that max_time counts in, "" where lengths measure the trials."""
        return "" if self.max_time is None else self.time_metric or ""


class BudgetOptions(SearcherOptions):
    """Trials that share a budget of training, in the unit of max_length."""

    max_length: MaxLength
    """How long a trial trains at most: {batches: n}, {records: n} or {epochs: n}."""
    budget: Annotated[Measured, CrossCheck(check_budget_unit)]
    """Training of all trials together, in the unit of max_length."""


def find_too_many_rungs(options: SearcherOptions) -> Iterator[Finding]:
    """Yield every number of rungs above that of the lengths at which trials can be compared, where
    a user counts them.
    """
    name, longest = next(iter(options.lengths().items()), ("", None))
    if longest is None:
        return
    for loc, rungs in _rung_numbers(options):
        if rungs > longest.count:
            message = f"must be at most {name} ({longest.count} {longest.unit}), not {rungs}"
            yield Finding(loc, message, "each rung needs a different length", rungs)


def find_budget_problems(trials: int, budget_field: str) -> Iterator[Finding]:
    """Yield what is wrong with a budget that is enough for so many trials."""
    loc = (budget_field,)
    if trials == 0:
        yield Finding(loc, "is too small: no trial would be made", "raise it, or use fewer rungs")
    elif trials > TRIALS_MAX:
        shown = shown_count(trials)
        yield Finding(loc, f"makes {shown} trials, at most {TRIALS_MAX} are allowed")


def _rung_numbers(options: SearcherOptions) -> Iterator[tuple[Loc, int]]:
    if isinstance(options, HalvingOptions):
        yield ("num_rungs",), options.num_rungs
    for n, rungs in enumerate(getattr(options, "bracket_rungs", ())):
        yield ("bracket_rungs", n), rungs
