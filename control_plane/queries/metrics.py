"""Queries of a trial's valid metric reports.

A trial that restarts from a checkpoint trains and reports the batches after the checkpoint again.
The queries leave out the void reports of earlier runs, by the rules of `void_reports`.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.trial.state import TrialState
from control_plane.agents.metric_rows import (
    Stream,
    epoch_range,
    find_start,
    group_range,
    rank_range,
    read_segments,
    to_segment,
)
from control_plane.metrics.columns import Columns
from control_plane.metrics.segment import decode_summary
from control_plane.queries.answer import Answer
from control_plane.queries.metric_series import VoidReports
from control_plane.queries.metric_series_cache import MetricSeriesCache
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.void_reports import run_cuts
from control_plane.services import Services

# A page larger than this ends early. A single report may have up to 256 KiB.
_PAGE_BYTES_MAX = 4 * 1024 * 1024


class Metrics(Answer):
    """A report of metrics."""

    group: str
    steps_completed: int
    metrics: dict[str, Any]
    time_ms: int


def list_metrics(
    services: Services,
    trial: TrialState,
    group: str | None,
    page: PageRequest,
    rank: int | None = None,
) -> Page[Metrics]:
    """Return a page of the trial's valid reports, sorted by group, then in the order of reporting.

    Reports of earlier runs are left out if a later run discarded or repeated the work. A page with
    large reports may have fewer reports than the limit of the request. Empty for a trial or group
    without reports.

    Args:
        services: the services with the state table and object store.
        trial: the trial's state.
        group: the group to list; None for all groups.
        page: the request.
        rank: None lists the trial's own reports. A number lists the reports that this rank's
            process keeps separate from the trial's reports.

    Raises:
        RequestError: invalid, for a cursor of another list.
        OSError: the object store does not answer.
    """
    trial_id = trial.trial_id
    first, last = rank_range(rank) if group is None else group_range(group, rank)
    read: dict[Stream, int] = {}
    after = page.start_after("metrics", (str, int, str, int))
    if after is not None:
        stream, offset = Stream(str(after[0]), int(after[1]), str(after[2]), rank), int(after[3])
        first, read[stream] = find_start(services.table, trial_id, stream, offset), offset

    @cache
    def void_reports(name: str) -> VoidReports:
        return services.cache_of(MetricSeriesCache).find_void_reports(
            services.table, services.objects, trial_id, name, run_cuts(trial), rank
        )

    items: list[Metrics] = []
    size = 0
    for stream, columns in _new_reports(services, trial_id, first, last, read):
        if stream.epoch < trial.epoch:
            columns = void_reports(stream.group).select_valid(stream.epoch, columns)
        for position in range(len(columns)):
            if len(items) == page.limit or size > _PAGE_BYTES_MAX:
                place = (*stream[:3], columns.offsets[position] - 1)
                return Page(items=items, next_cursor=encode_cursor("metrics", place))
            items.append(_report_answer(stream.group, columns, position))
            size += sum(map(_bytes_of, items[-1].metrics.items()))
    return Page(items=items)


def steps_trained(services: Services, trial_id: int, epoch: int) -> int:
    """Return the steps of an allocation's training reports so far; 0 without a report.

    The result is the highest step in the last row of one writer. Raises OSError if the object store
    does not answer.

    Args:
        services: the services that read metrics.
        trial_id: the trial.
        epoch: the allocation's epoch.
    """
    first, last = epoch_range("training", epoch)
    address = addresses.trial(trial_id)
    rows = services.table.query(address, first, last, limit=1, descending=True).rows
    if not rows:
        return 0
    summary = decode_summary(rows[0].body)
    if summary is not None:
        return summary.steps_max
    return max(to_segment(rows[0]).read_columns(services.objects).steps, default=0)


def _new_reports(
    services: Services, trial_id: int, first: str, last: str, read: dict[Stream, int]
) -> Iterator[tuple[Stream, Columns]]:
    """Yield the unread reports in a range of sort keys, each report once, with the stream.

    Rows are read during the iteration. Void reports are included. Raises OSError if the object
    store does not answer.

    Args:
        services: the services that read metrics.
        trial_id: the trial.
        first: the start of the range.
        last: the exclusive end of the range.
        read: the last offset read of each stream, updated in place.
    """
    for segment in read_segments(services.table, trial_id, first, last):
        columns = segment.read_columns(services.objects).reports_after(read.get(segment.stream, 0))
        if len(columns):
            read[segment.stream] = columns.offsets[-1]
            yield segment.stream, columns


def _bytes_of(metric: tuple[str, Any]) -> int:
    """Return the approximate size of a metric's name and value in an answer, in bytes."""
    name, value = metric
    return len(name) + (20 if isinstance(value, int | float) else len(to_json(value)))


def _report_answer(group: str, columns: Columns, position: int) -> Metrics:
    """Return the answer for the report at an index of `columns`."""
    report = columns.report(position)
    return Metrics(
        group=group,
        steps_completed=report.steps,
        metrics=dict(report.metrics),
        time_ms=report.time_ms,
    )
