"""Shared by the searches whose trials all train to the end: how many start, and how far it is."""

from control_plane.field_types import Length
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.method import ENDLESS, Tally


def length_count(length: Length | None) -> int:
    """The number of units that a trial trains; ENDLESS where its own code decides."""
    return ENDLESS if length is None else length.count


def initial_trial_count(rules: SearchRules, trials: int, max_concurrent_trials: int) -> int:
    """Count the trials to create at the start; max_concurrent_trials 0 means no limit."""
    if rules.creates_all_at_once or max_concurrent_trials == 0:
        return trials
    return min(trials, max_concurrent_trials)


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
