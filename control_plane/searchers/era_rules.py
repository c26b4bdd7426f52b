"""The rules in which search methods of the two eras differ, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchRules:
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


STEP_ERA = SearchRules(
    maxval_drawn=False,
    creates_all_at_once=True,
    replaces_invalid_hparams=False,
    grid_from_end=False,
    any_exit_fails=True,
    progress_in_workloads=True,
)
LENGTH_ERA = SearchRules(
    maxval_drawn=True,
    creates_all_at_once=False,
    replaces_invalid_hparams=True,
    grid_from_end=True,
    any_exit_fails=False,
    progress_in_workloads=False,
)
