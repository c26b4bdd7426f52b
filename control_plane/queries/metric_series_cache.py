"""The cache of metric series in a process: later requests of a chart read new rows only."""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from control_plane.bounded_cache import BoundedCache
from control_plane.objects.store import ObjectStore
from control_plane.queries.metric_series import MetricSeries, VoidReports
from control_plane.queries.metric_series_reader import RowSource, refresh_series
from control_plane.queries.void_reports import RunCuts
from control_plane.state.table import StateTable

NUMBERS_MAX = 3_000_000
"""The default of the most numbers in memory over all series, of 16 bytes each."""
SERIES_NUMBERS = 200
"""The overhead of a series, as a count of numbers."""

Drawn = TypeVar("Drawn")

_SeriesKey = tuple[int, str, int | None]
"""The trial, the group of metrics, and the rank of separate reports or None."""


class MetricSeriesCache:
    """Cache of a cluster's most recently drawn series. Safe to share between threads.

    The length is the number of cached series.

    Args:
        numbers_max: the most numbers in memory over all series.
    """

    def __init__(self, numbers_max: int = NUMBERS_MAX) -> None:
        self._lock = Lock()
        self._numbers_max = numbers_max
        self._kept: BoundedCache[_SeriesKey, MetricSeries] = BoundedCache(numbers_max)

    def __len__(self) -> int:
        return len(self._kept)

    def draw_chart(
        self,
        table: StateTable,
        objects: ObjectStore,
        trial_id: int,
        group: str,
        cuts: RunCuts,
        draw: Callable[[MetricSeries], Drawn],
        rank: int | None = None,
    ) -> Drawn:
        """Read the new reports of a series, cache the series, and return the result of `draw`.

        Least recently drawn series are evicted above `numbers_max`. A trial or group without rows
        has an empty series.

        Args:
            table: the state table with the rows of metrics.
            objects: the object store with the reports of full rows.
            trial_id: the trial.
            group: the group of metrics.
            cuts: the limits of the valid reports of the trial's runs.
            draw: receives the series under its lock.
            rank: None for the trial's own reports, or the rank that keeps the reports separate.

        Raises:
            TableError, OSError: the table or the object store cannot be read.
            ValueError: a newer release has encoded a row.
            Exception: any error of `draw`.
        """
        key = trial_id, group, rank
        with self._lock:
            series = self._kept.find(key)
            if series is None:
                series = MetricSeries()
                self._kept.keep(key, series, SERIES_NUMBERS)
        with series.lock:
            refresh_series(RowSource(table, objects, trial_id, group, rank, cuts), series)
            chart = draw(series)
            numbers = series.count_numbers() + SERIES_NUMBERS
        with self._lock:
            # The cache drops entries above the cache's limit. A larger series counts as the limit,
            # so that the series stays cached.
            self._kept.keep(key, series, min(numbers, self._numbers_max))
        return chart

    def find_void_reports(
        self,
        table: StateTable,
        objects: ObjectStore,
        trial_id: int,
        group: str,
        cuts: RunCuts,
        rank: int | None = None,
    ) -> VoidReports:
        """Read the new reports of a series, cache the series, and return the limits of valid
        reports.

        The limits are empty for a series without rows. The arguments are those of `draw_chart`.

        Raises:
            TableError, OSError: the table or the object store cannot be read.
            ValueError: a newer release has encoded a row.
        """
        return self.draw_chart(
            table,
            objects,
            trial_id,
            group,
            cuts,
            lambda series: VoidReports(dict(series.lasts), dict(series.replaced)),
            rank,
        )
