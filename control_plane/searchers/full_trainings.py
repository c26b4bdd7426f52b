"""Shared by the searches whose trials all train to the end: their options, how many trials start,
and how far the search is.
"""

from control_plane.field_types import CountOrZero, Length, Measured, Steps
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.method import ENDLESS, Tally
from control_plane.searchers.options import SearcherOptions


class StepTrainingOptions(SearcherOptions):
    """Trials of a number of steps."""

    max_steps: Steps
    """The number of steps that a trial trains."""


class TrainingOptions(SearcherOptions):
    """Trials of one length, or as long as their code trains."""

    max_length: Measured | None = None
    """How long a trial trains: {batches: n}, {records: n} or {epochs: n}. Without it, a trial of a
    command trains as long as its code does; a trial class needs it.
    """


class ConcurrentTrainingOptions(TrainingOptions):
    """Trials of which a number run at a time."""

    max_concurrent_trials: CountOrZero = 16
    """The number of trials at a time; 0 means no limit."""


def length_count(length: Length | None) -> int:
    """The number of units that a trial trains; ENDLESS where its own code decides."""
    return ENDLESS if length is None else length.count


def initial_trial_count(rules: SearchRules, trials: int, max_concurrent_trials: int) -> int:
    """Count the trials to create at the start; max_concurrent_trials 0 means no limit."""
    if rules.creates_all_at_once or max_concurrent_trials == 0:
        return trials
    return min(trials, max_concurrent_trials)


def vacant_trial_count(
    rules: SearchRules, trials: int, max_concurrent_trials: int, tally: Tally
) -> int:
    """Count the trials that may be created until as many are open as at the start; fewer than none
    where trials were opened again.
    """
    opened = tally.requested - tally.closed
    return initial_trial_count(rules, trials, max_concurrent_trials) - opened


def completed_share(rules: SearchRules, trials: int, max_length: int, tally: Tally) -> float:
    """Compute the progress of a search whose `trials` all train to `max_length`.

    By units, a closed trial counts in full however it ended, an invalid one not at all. Of ENDLESS
    trainings it is the mean over the trials so far, whose units are shares of a whole.
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
