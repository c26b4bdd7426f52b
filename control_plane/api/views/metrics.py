"""Metrics of a trial as the API shows them: what its latest course reported.

A trial that goes back to a checkpoint reports the steps after it once more. What an earlier
allocation had reported of them is passed over: of each group, an allocation's lines end where a
later one's begin.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.agents.segments import (
    METRICS,
    METRICS_END,
    Stream,
    first_segment,
    of_epoch,
    of_group,
    segment_of,
    segments,
    starting_at,
)
from control_plane.api.bodies import Body
from control_plane.api.pages import Page, PageAsked, write_cursor
from control_plane.api.services import Services
from control_plane.metrics.columns import Columns
from control_plane.metrics.segment import summary_of

# Later allocations than this many are not looked through for where they began.
_LATER_MAX = 100
# A report may be as long as its line: a page ends with the one that makes it so large.
_PAGE_BYTES_MAX = 4 * 1024 * 1024

Ends = Callable[[str, int], float]
"""The step before which an allocation's lines of a group count, by group and epoch."""


class Metrics(Body):
    """One report of metrics."""

    group: str
    steps_completed: int
    metrics: dict[str, Any]
    time_ms: int


def metrics(
    services: Services, trial_id: int, epoch: int, group: str | None, asked: PageAsked
) -> Page[Metrics]:
    """Reports by group, then in the order they were made; `epoch` is the trial's latest."""
    first, last = (METRICS, METRICS_END) if group is None else of_group(group)
    read: dict[Stream, int] = {}
    after = asked.after("metrics", (str, int, str, int))
    if after is not None:
        stream, offset = Stream(str(after[0]), int(after[1]), str(after[2])), int(after[3])
        first, read[stream] = starting_at(services.table, trial_id, stream, offset), offset
    ends = _ends(services, trial_id, epoch)
    items: list[Metrics] = []
    size = 0
    for stream, columns in _unread(services, trial_id, first, last, read):
        end = ends(stream.group, stream.epoch)
        for position in range(len(columns)):
            if columns.steps[position] >= end:
                continue
            if len(items) == asked.limit or size > _PAGE_BYTES_MAX:
                place = (*stream, columns.offsets[position] - 1)
                return Page(items=items, next_cursor=write_cursor("metrics", place))
            items.append(_item(stream.group, columns, position))
            size += sum(map(_bytes_of, items[-1].metrics.items()))
    return Page(items=items)


def steps_trained(services: Services, trial_id: int, epoch: int) -> int:
    """The steps that an allocation last reported training metrics of; 0 before that."""
    first, last = of_epoch("training", epoch)
    address = addresses.trial(trial_id)
    rows = services.table.query(address, first, last, limit=1, descending=True).rows
    if not rows:
        return 0
    summary = summary_of(rows[0].body)
    if summary is not None:
        return summary.steps_max
    return max(segment_of(rows[0]).columns(services.objects).steps, default=0)


def _unread(
    services: Services, trial_id: int, first: str, last: str, read: dict[Stream, int]
) -> Iterator[tuple[Stream, Columns]]:
    """Reports of a range, each once; `read` holds the offset up to which a stream was read."""
    for segment in segments(services.table, trial_id, first, last):
        columns = segment.columns(services.objects).behind(read.get(segment.stream, 0))
        if len(columns):
            read[segment.stream] = columns.offsets[-1]
            yield segment.stream, columns


def _ends(services: Services, trial_id: int, latest: int) -> Ends:
    @cache
    def began(group: str, epoch: int) -> float:
        found = first_segment(services.table, trial_id, *of_epoch(group, epoch))
        return found.began(services.objects) if found else float("inf")

    @cache
    def ends(group: str, epoch: int) -> float:
        later = range(epoch + 1, min(latest, epoch + _LATER_MAX) + 1)
        return min((began(group, other) for other in later), default=float("inf"))

    return ends


def _bytes_of(metric: tuple[str, Any]) -> int:
    """About what a metric takes in an answer."""
    name, value = metric
    return len(name) + (20 if isinstance(value, int | float) else len(to_json(value)))


def _item(group: str, columns: Columns, position: int) -> Metrics:
    report = columns.report(position)
    return Metrics(
        group=group,
        steps_completed=report.steps,
        metrics=dict(report.metrics),
        time_ms=report.time_ms,
    )
