"""Metrics of a trial as the API shows them: what its latest course reported.

A trial that goes back to a checkpoint reports the steps after it once more. What an earlier
allocation had reported of them is passed over: of each group, an allocation's lines end where a
later one's begin.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from control_plane.actors import addresses
from control_plane.agents.sessions import METRICS
from control_plane.api.pages import Page, PageAsked, write_cursor
from control_plane.api.services import Services
from control_plane.dispatch.kinds import parse_json
from control_plane.state.table import Row

_SEGMENTS_READ = 50
# Later allocations than this many are not looked through for where they began.
_LATER_MAX = 100

Ends = Callable[[str, int], float]
"""The step before which an allocation's lines of a group count, by group and epoch."""


class Metrics(BaseModel):
    """One report of metrics."""

    group: str
    steps_completed: int
    metrics: dict[str, Any]
    time_ms: int


def metrics(
    services: Services, trial_id: int, epoch: int, group: str | None, asked: PageAsked
) -> Page[Metrics]:
    """Reports by group, then in the order they were made; `epoch` is the trial's latest."""
    first, last = (METRICS, f"{METRICS}~") if group is None else _range(group)
    skipped = 0
    after = asked.after("metrics", (str, int))
    if after is not None:
        first, skipped = str(after[0]), int(after[1])
    ends = _ends(services, trial_id, epoch)
    items: list[Metrics] = []
    while True:
        page = services.table.query(addresses.trial(trial_id), first, last, limit=_SEGMENTS_READ)
        for row in page.rows:
            segment = _segment(row, group, ends)
            room = asked.limit - len(items)
            items += segment[skipped : skipped + room]
            if len(segment) > skipped + room:
                cursor = write_cursor("metrics", (row.key.sort, skipped + room))
                return Page(items=items, next_cursor=cursor)
            skipped = 0
        if page.next_sort is None:
            return Page(items=items)
        first = page.next_sort


def steps_trained(services: Services, trial_id: int, epoch: int) -> int:
    """The steps that an allocation last reported training metrics of; 0 before that."""
    first, last = _range_of_epoch("training", epoch)
    address = addresses.trial(trial_id)
    rows = services.table.query(address, first, last, limit=1, descending=True).rows
    lines = [line for row in rows for line in _lines(row, "training")]
    return max((line.steps_completed for line in lines), default=0)


def _ends(services: Services, trial_id: int, latest: int) -> Ends:
    @cache
    def began(group: str, epoch: int) -> float:
        first, last = _range_of_epoch(group, epoch)
        rows = services.table.query(addresses.trial(trial_id), first, last, limit=1).rows
        lines = [line for row in rows for line in _lines(row, group)]
        return min((line.steps_completed for line in lines), default=float("inf"))

    @cache
    def ends(group: str, epoch: int) -> float:
        later = range(epoch + 1, min(latest, epoch + _LATER_MAX) + 1)
        return min((began(group, other) for other in later), default=float("inf"))

    return ends


def _range(group: str) -> tuple[str, str]:
    return f"{METRICS}{group}#", f"{METRICS}{group}$"


def _range_of_epoch(group: str, epoch: int) -> tuple[str, str]:
    return f"{METRICS}{group}#{epoch:08d}#", f"{METRICS}{group}#{epoch:08d}$"


def _segment(row: Row, group: str | None, ends: Ends) -> list[Metrics]:
    name, epoch = row.key.sort.removeprefix(METRICS).split("#")[:2]
    if group not in (None, name):
        return []
    end = ends(name, int(epoch))
    return [line for line in _lines(row, name) if line.steps_completed < end]


def _lines(row: Row, group: str) -> list[Metrics]:
    """The reports of a row that are what they should be; a trial may write anything."""
    kept = []
    for line in parse_json(row.body):
        try:
            kept.append(Metrics(**{**line, "group": group}))
        except ValidationError:
            continue
    return kept
