"""The differences between the search methods of the step era and the length era, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchRules:
    """The rules of one era. Every plan holds a copy."""

    maxval_drawn: bool
    """Whether a sampled integer can equal `maxval`."""
    creates_all_at_once: bool
    """Whether random and grid searches ignore `max_concurrent_trials` and create all trials at the
    start.
    """
    replaces_invalid_hparams: bool
    """Whether a new trial replaces a trial that refused the hyperparameters. The refused trial then
    does not count towards `max_trials`.
    """
    grid_from_end: bool
    """Whether a grid search starts at the last grid point and ends at the first."""
    any_exit_fails: bool
    """Whether a search fails if all trials exit early, for any reason. If False, only a search
    whose trials all end with errors fails.
    """
    progress_in_workloads: bool
    """Whether progress counts steps and validations instead of reported units."""


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
