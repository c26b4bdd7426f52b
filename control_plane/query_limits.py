"""Limits on the work of a single query, which protect a process from expensive requests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryLimits:
    """The most rows, trials and seconds that a query spends."""

    counted_experiments_max: int = 20_000
    """The most experiments that are counted for projects, the newest first. Each costs one row of
    the list.
    """
    listed_experiments_max: int = 20_000
    """The most rows of the list of experiments that a request reads."""
    looked_up_experiments_max: int = 1_000
    """The most experiments that a request reads by key: experiments with a metadata term, and
    experiments that must be loaded for a sort order.
    """
    merged_trials_max: int = 100
    """The most trials whose events are merged into the history of an experiment. A page reads rows
    of every journal.
    """
    rung_trials_max: int = 50_000
    """The most trials of a search whose rungs are listed."""
    result_trials_max: int = 2_000
    """The most trials whose results at a length are read, and from which importance is computed."""
    result_series_max: int = 500
    """The most series of metrics that are read for results at a length. Each costs a query."""
    event_file_parts_max: int = 50_000
    """The most stored parts of a trial's event files that are listed. A trial that runs for a month
    and uploads every ten minutes stores 4,400 parts of a file.
    """
    search_events_max: int = 500
    """The most events of a custom search in an answer."""
    preview_seconds_max: float = 2.0
    """The most seconds of the preview of a search, without the estimate."""
    estimate_seconds_max: float = 4.0
    """The most seconds of the simulation that estimates the duration of a search."""


DEFAULT_LIMITS = QueryLimits()
