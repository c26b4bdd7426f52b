"""Shared options of the searchers that compare trials at rungs, and checks of these options."""

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
# A generous limit: with the default divisor 4, 27 rungs cover all lengths below 2^53.
RUNGS_MAX: Final = 100

Rungs = Annotated[int, Ge(1), Le(RUNGS_MAX)]
Brackets = Annotated[tuple[Rungs, ...], ListInput(), MaxLen(RUNGS_MAX)]
Divisor = Annotated[float, Gt(1)]
Mode = Literal["aggressive", "standard", "conservative"]
FewTrials = Annotated[int, Ge(1), Le(SIMPLE_TRIALS_MAX)]


def check_budget_unit(budget: Length, above: Mapping[str, Any]) -> None:
    """Raise ValueRefused for a budget with another unit than `max_length`.

    `above` contains the options that are declared before the budget, by name. Without a valid
    `max_length` in `above`, accept any budget.
    """
    target = above.get("max_length")
    if target is not None and budget.unit != target.unit:
        raise ValueRefused(f"must be in {target.unit}, like max_length, not in {budget.unit}")


def check_budget_size(budget: Length, target: Length | None, target_field: str) -> None:
    """Raise ValueRefused for a budget that is not greater than `target`, the longest training.

    Accept any budget if `target` is None or has another unit. `target_field` is the name of the
    option `target`, for the message.
    """
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
    """The options of a searcher with a single bracket."""

    num_rungs: Rungs
    """The number of times that trials are compared."""
    divisor: Divisor = 4.0
    """The reduction factor: with 4, one of four trials is promoted from a rung."""


class AdaptiveOptions(SearcherOptions):
    """The options of a searcher with several brackets, chosen by a mode or by a list."""

    divisor: Divisor = 4.0
    """The reduction factor: with 4, one of four trials is promoted from a rung."""
    mode: Mode = "standard"
    """How early trials are stopped."""
    max_rungs: Rungs = 5
    """The largest number of times that trials are compared."""


class AsynchronousOptions(TrialCountOptions):
    """The options of a searcher with asynchronous halving in the length era."""

    max_time: Count | None = None
    """The longest training of a trial, in the unit of `time_metric`. An alternative to max_length.
    """
    time_metric: Annotated[Text | None, CrossCheck(_check_time_metric)] = None
    """The reported metric that measures how long a trial has trained."""
    max_length: Annotated[Measured | None, CrossCheck(_check_measure)] = None
    """The longest training of a trial: {batches: n}, {records: n} or {epochs: n}."""
    max_concurrent_trials: CountOrZero = 16
    """The number of concurrent trials; with 0 the search decides."""
    stop_once: bool = False
    """Whether trials are stopped rather than promoted."""

    @property
    def trial_time_metric(self) -> str:
        """Return the name of the time metric, by which trials are measured if `max_time` is set.

        Return "" without `max_time`, even with a time metric: lengths then measure training.
        """
        return "" if self.max_time is None else self.time_metric or ""


class BudgetOptions(SearcherOptions):
    """The options of a searcher whose trials share a budget of training."""

    max_length: MaxLength
    """The longest training of a trial: {batches: n}, {records: n} or {epochs: n}."""
    budget: Annotated[Measured, CrossCheck(check_budget_unit)]
    """The training of all trials together, in the unit of max_length."""


def find_too_many_rungs(options: SearcherOptions) -> Iterator[Finding]:
    """Yield a finding for each configured number of rungs that exceeds the longest training.

    Each rung needs a different integer length. Yield nothing if no option is a length.
    """
    name, longest = next(iter(options.lengths().items()), ("", None))
    if longest is None:
        return
    for loc, rungs in _rung_numbers(options):
        if rungs > longest.count:
            message = f"must be at most {name} ({longest.count} {longest.unit}), not {rungs}"
            yield Finding(loc, message, "each rung needs a different length", rungs)


def find_budget_problems(trials: int, budget_field: str) -> Iterator[Finding]:
    """Yield a finding if a budget allows no trial or more than TRIALS_MAX trials.

    Args:
        trials: the number of trials that the budget allows.
        budget_field: the name of the option in the finding.
    """
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
