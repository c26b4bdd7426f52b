"""Reports of metrics of a trial: those that count.

A trial that goes back to a checkpoint reports the steps after it once more. The reports of them by
an earlier allocation are left out: in each group, an allocation's lines end where a later one's
begin.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.agents.metric_rows import (
    Stream,
    epoch_range,
    find_start,
    group_range,
    rank_range,
    read_first_segment,
    read_segments,
    to_segment,
)
from control_plane.metrics.columns import Columns
from control_plane.metrics.segment import decode_summary
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services

# Later allocations whose first step is looked up; further ones are not.
_LATER_MAX = 100
# A report may be as long as its line: a page ends with the one that makes it so large.
_PAGE_BYTES_MAX = 4 * 1024 * 1024

EndStep = Callable[[str, int], float]
"""The step before which an allocation's lines of a group count, by group and epoch."""


class Metrics(Answer):
    """One report of metrics."""

    group: str
    steps_completed: int
    metrics: dict[str, Any]
    time_ms: int


def list_metrics(
    services: Services,
    trial_id: int,
    epoch: int,
    group: str | None,
    page: PageRequest,
    rank: int | None = None,
) -> Page[Metrics]:
    """List reports by group, then in the order they were made; `epoch` is the trial's latest. With
    a `rank`, those that this process keeps apart from its trial's.
    """
    first, last = rank_range(rank) if group is None else group_range(group, rank)
    read: dict[Stream, int] = {}
    after = page.start_after("metrics", (str, int, str, int))
    if after is not None:
        stream, offset = Stream(str(after[0]), int(after[1]), str(after[2]), rank), int(after[3])
        first, read[stream] = find_start(services.table, trial_id, stream, offset), offset
    end_step = _end_step(services, trial_id, epoch, rank)
    items: list[Metrics] = []
    size = 0
    for stream, columns in _new_reports(services, trial_id, first, last, read):
        end = end_step(stream.group, stream.epoch)
        for position in range(len(columns)):
            if columns.steps[position] >= end:
                continue
            if len(items) == page.limit or size > _PAGE_BYTES_MAX:
                place = (*stream[:3], columns.offsets[position] - 1)
                return Page(items=items, next_cursor=encode_cursor("metrics", place))
            items.append(_report_answer(stream.group, columns, position))
            size += sum(map(_bytes_of, items[-1].metrics.items()))
    return Page(items=items)


def steps_trained(services: Services, trial_id: int, epoch: int) -> int:
    """The steps that an allocation last reported training metrics of; 0 before that."""
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
    """The reports of a range, each once; `read` holds the offset up to which a stream was read."""
    for segment in read_segments(services.table, trial_id, first, last):
        columns = segment.read_columns(services.objects).reports_after(read.get(segment.stream, 0))
        if len(columns):
            read[segment.stream] = columns.offsets[-1]
            yield segment.stream, columns


def _end_step(services: Services, trial_id: int, latest: int, rank: int | None) -> EndStep:
    @cache
    def first_step(group: str, epoch: int) -> float:
        place = epoch_range(group, epoch, rank)
        segment = read_first_segment(services.table, trial_id, *place)
        return segment.read_first_step(services.objects) if segment else float("inf")

    @cache
    def end_step(group: str, epoch: int) -> float:
        later = range(epoch + 1, min(latest, epoch + _LATER_MAX) + 1)
        return min((first_step(group, other) for other in later), default=float("inf"))

    return end_step


def _bytes_of(metric: tuple[str, Any]) -> int:
    """The approximate bytes that a metric takes in an answer."""
    name, value = metric
    return len(name) + (20 if isinstance(value, int | float) else len(to_json(value)))


def _report_answer(group: str, columns: Columns, position: int) -> Metrics:
    report = columns.report(position)
    return Metrics(
        group=group,
        steps_completed=report.steps,
        metrics=dict(report.metrics),
        time_ms=report.time_ms,
    )
