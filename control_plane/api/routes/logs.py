"""Logs of trials: as text, and as lines with their time, rank and level."""

from typing import Annotated, Literal

from fastapi import Depends, Path, Query

from control_plane.agents.log_lines import Place, Wanted, find_lines
from control_plane.agents.logs import TrialLogs
from control_plane.api.bodies import Body
from control_plane.api.errors import invalid
from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.pages import (
    CURSOR_CHARACTERS_MAX,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    read_cursor,
    write_cursor,
)
from control_plane.api.services import Given
from control_plane.api.views import trial as trials

LOG_BYTES_DEFAULT = 64 * 1024
LOG_BYTES_MAX = 1024 * 1024

router = guarded_router("logs")

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]
LogBytes = Annotated[int, Query(ge=4, le=LOG_BYTES_MAX)]
TimeMs = Annotated[int | None, Query(ge=0, le=2**53)]
Level = Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class Log(Body):
    """A piece of a log; read on at `next`, until `complete`."""

    text: str
    next: int
    complete: bool


class Line(Body):
    """See docs/api.md; `time_ms` is null where nobody noted it."""

    offset: int
    time_ms: int | None
    rank: int
    level: str | None
    text: str


class Lines(Body):
    """A page of lines: short or empty ones too go on at `next_cursor`, until `complete`."""

    items: list[Line]
    next_cursor: str | None
    complete: bool


def _wanted(
    since_ms: TimeMs = None,
    until_ms: TimeMs = None,
    rank: Annotated[int | None, Query(ge=0, le=99_999)] = None,
    level: Level | None = None,
    search: Annotated[str, Query(max_length=1000)] = "",
) -> Wanted:
    return Wanted(since_ms, until_ms, rank, level, search)


@router.get("/trials/{trial_id}/logs")
@needs(*PEOPLE)
def read_logs(
    trial_id: TrialId,
    services: Given,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit_bytes: LogBytes = LOG_BYTES_DEFAULT,
    tail_bytes: Annotated[int | None, Query(ge=0, le=LOG_BYTES_MAX)] = None,
) -> Log:
    """From byte `after` on, or the last `tail_bytes`."""
    if after is not None and tail_bytes is not None:
        raise invalid("tail_bytes", "must not be given beside after", "keep one of them")
    # The state first: a trial that has ended has no log to come.
    state = trials.found(services, trial_id)
    ended = state.status.final
    logs = TrialLogs(services.table, services.objects)
    if tail_bytes is None:
        found = logs.read(trial_id, state.epoch, after or 0, limit_bytes, ended)
    else:
        found = logs.tail(trial_id, state.epoch, tail_bytes, ended)
    return Log(text=found.text, next=found.end, complete=ended and found.end >= found.total)


@router.get("/trials/{trial_id}/logs/lines")
@needs(*PEOPLE)
def read_lines(
    trial_id: TrialId,
    services: Given,
    wanted: Annotated[Wanted, Depends(_wanted)],
    after: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
) -> Lines:
    """Wanted lines in order. What is still to come is found by asking again at `next_cursor`."""
    state = trials.found(services, trial_id)
    found = find_lines(
        TrialLogs(services.table, services.objects),
        trial_id,
        state.epoch,
        _place(after),
        ended=state.status.final,
        wanted=wanted,
        limit=limit,
    )
    complete = state.status.final and found.is_end
    cursor = None if complete else write_cursor("lines", tuple(map(int, found.next)))
    items = [Line.model_validate(line, from_attributes=True) for line in found.lines]
    return Lines(items=items, next_cursor=cursor, complete=complete)


def _place(cursor: str | None) -> Place:
    if cursor is None:
        return Place()
    offset, is_inside = read_cursor(cursor, "lines", (int, int))
    return Place(max(0, int(offset)), bool(is_inside))
