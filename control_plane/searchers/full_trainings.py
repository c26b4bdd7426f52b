"""Shared code of the searchers that train every trial to the end: options, numbers of trials, and
progress.
"""

from control_plane.field_types import CountOrZero, Length, Measured, Steps
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.method import ENDLESS, Tally
from control_plane.searchers.options import SearcherOptions


class StepTrainingOptions(SearcherOptions):
    """The length option of the step era."""

    max_steps: Steps
    """The number of steps that a trial trains."""


class TrainingOptions(SearcherOptions):
    """The length option of the length era."""

    max_length: Measured | None = None
    """The length of a trial's training: {batches: n}, {records: n} or {epochs: n}. If it is
    missing, a command trains until the command ends. A trial class requires it.
    """


class ConcurrentTrainingOptions(TrainingOptions):
    """The length option, and the limit of concurrent trials."""

    max_concurrent_trials: CountOrZero = 16
    """The largest number of trials that run concurrently; 0 means no limit."""


def length_count(length: Length | None) -> int:
    """Return the number of units of a length. ENDLESS if `length` is None."""
    return ENDLESS if length is None else length.count


def initial_trial_count(rules: SearchRules, trials: int, max_concurrent_trials: int) -> int:
    """Return the number of trials to create at the start of a search with `trials` trials.

    The number is at most `max_concurrent_trials`. A limit of 0 means no limit, and the step era
    ignores the limit.
    """
    if rules.creates_all_at_once or max_concurrent_trials == 0:
        return trials
    return min(trials, max_concurrent_trials)


def vacant_trial_count(
    rules: SearchRules, trials: int, max_concurrent_trials: int, tally: Tally
) -> int:
    """Return the number of trials that can be created until as many are open as at the start.

    Negative if more trials are open, because a continuation reopened trials.
    """
    open_trials = tally.requested - tally.closed
    return initial_trial_count(rules, trials, max_concurrent_trials) - open_trials


def completed_share(rules: SearchRules, trials: int, max_length: int, tally: Tally) -> float:
    """Return the completed share of a search that trains `trials` trials to `max_length` each.

    - Length era: a closed trial counts in full, even after an early exit. An invalid trial does not
      count.
    - Step era: completed steps and validations, divided by the planned number.
    - `max_length` ENDLESS: the mean over the valid trials so far. Reported units of an open trial
      are shares of 1.
    """
    if max_length == ENDLESS:
        valid = tally.created - tally.invalid
        done = tally.closed - tally.invalid + tally.open_units
        return done / valid if valid else 0.0
    if rules.progress_in_workloads:
        done, expected = tally.units + tally.reached, (max_length + 1) * trials
    else:
        finished = tally.closed - tally.invalid
        done, expected = max_length * finished + tally.open_units, max_length * trials
    return done / expected if expected else 0.0
