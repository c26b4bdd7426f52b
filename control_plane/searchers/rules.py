"""What differs between the two eras of search methods, as data."""

from dataclasses import dataclass

from control_plane.searchers.method import Tally


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one era; every plan carries them."""

    # Integers can be drawn as their maxval.
    maxval_drawn: bool
    # Every trial is created at the start, whatever max_concurrent_trials says.
    creates_all_at_once: bool
    # A trial that refuses its hyperparameters does not count towards max_trials.
    replaces_invalid_hparams: bool
    # Grid points are taken from the last one back to the first.
    grid_from_end: bool
    # Early exits of any reason, not errors alone, can make the search fail.
    any_exit_fails: bool
    # Progress counts steps and validations instead of reported units.
    progress_in_workloads: bool


STEP_ERA = Rules(
    maxval_drawn=False,
    creates_all_at_once=True,
    replaces_invalid_hparams=False,
    grid_from_end=False,
    any_exit_fails=True,
    progress_in_workloads=True,
)
LENGTH_ERA = Rules(
    maxval_drawn=True,
    creates_all_at_once=False,
    replaces_invalid_hparams=True,
    grid_from_end=True,
    any_exit_fails=False,
    progress_in_workloads=False,
)


def first_batch(rules: Rules, trials: int, max_concurrent_trials: int) -> int:
    """Count the trials to create at the start; max_concurrent_trials 0 means no limit."""
    if rules.creates_all_at_once or max_concurrent_trials == 0:
        return trials
    return min(trials, max_concurrent_trials)


def share_done(rules: Rules, trials: int, max_length: int, tally: Tally) -> float:
    """Compute the progress of a search whose `trials` all train to `max_length`.

    By units, a closed trial counts in full however it ended, an invalid one not at all.
    """
    if rules.progress_in_workloads:
        done, expected = tally.units + tally.reached, (max_length + 1) * trials
    else:
        finished = tally.closed - tally.invalid
        done, expected = max_length * finished + tally.open_units, max_length * trials
    return done / expected if expected else 0.0
