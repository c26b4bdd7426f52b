"""Shared by the searches whose trials all train to the end: how many start, and how far it is."""

from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.method import Tally


def initial_trial_count(rules: SearchRules, trials: int, max_concurrent_trials: int) -> int:
    """Count the trials to create at the start; max_concurrent_trials 0 means no limit."""
    if rules.creates_all_at_once or max_concurrent_trials == 0:
        return trials
    return min(trials, max_concurrent_trials)


def completed_share(rules: SearchRules, trials: int, max_length: int, tally: Tally) -> float:
    """Compute the progress of a search whose `trials` all train to `max_length`.

    By units, a closed trial counts in full however it ended, an invalid one not at all.
    """
    if rules.progress_in_workloads:
        done, expected = tally.units + tally.reached, (max_length + 1) * trials
    else:
        finished = tally.closed - tally.invalid
        done, expected = max_length * finished + tally.open_units, max_length * trials
    return done / expected if expected else 0.0
