"""Routes of trials' logs: as text, and as lines with time, rank and level."""

from typing import Annotated, Literal

from fastapi import Depends, Path, Query

from control_plane.access.principals import USER_ROLES
from control_plane.agents.log_lines import LineFilter, LogPosition, find_lines
from control_plane.agents.logs import TrialLogs
from control_plane.api.dependencies import (
    CURSOR_CHARACTERS_MAX,
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
    ServicesParameter,
)
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.errors import invalid
from control_plane.queries import trial as trials
from control_plane.queries.answer import Answer
from control_plane.queries.pages import decode_cursor, encode_cursor

LOG_BYTES_DEFAULT = 64 * 1024
LOG_BYTES_MAX = 1024 * 1024

router = guarded_router("logs")

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]
LogBytes = Annotated[int, Query(ge=4, le=LOG_BYTES_MAX)]
TimeMs = Annotated[int | None, Query(ge=0, le=2**53)]
Level = Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class Log(Answer):
    """A piece of a log.

    `next` is the offset of the next piece in bytes. `complete` is true if the trial has ended and
    the log ends with this piece.
    """

    text: str
    next: int
    complete: bool


class Line(Answer):
    """A line of a log.

    `offset` is the offset of the first byte. `time_ms` is the time at which the agent first saw the
    line, or null if unknown. `level` is null for a line without a level. An `unfinished` line is a
    part of the last line, such as a progress bar that still moves; the next line found has the
    rest.
    """

    offset: int
    time_ms: int | None
    rank: int
    level: str | None
    text: str
    unfinished: bool


class Lines(Answer):
    """A page of lines, which may be short or empty although more lines follow.

    `next_cursor` continues the search, also while the trial runs. `complete` is true and
    `next_cursor` is null after the last line of an ended trial.
    """

    items: list[Line]
    next_cursor: str | None
    complete: bool


def _line_filter(
    since_ms: TimeMs = None,
    until_ms: TimeMs = None,
    rank: Annotated[int | None, Query(ge=0, le=99_999)] = None,
    level: Level | None = None,
    search: Annotated[str, Query(max_length=1000)] = "",
) -> LineFilter:
    return LineFilter(since_ms, until_ms, rank, level, search)


@router.get("/trials/{trial_id}/logs")
@require_role(*USER_ROLES)
def read_logs(
    trial_id: TrialId,
    services: ServicesParameter,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit_bytes: LogBytes = LOG_BYTES_DEFAULT,
    tail_bytes: Annotated[int | None, Query(ge=0, le=LOG_BYTES_MAX)] = None,
) -> Log:
    """Read the log of a trial from byte `after` on, or the last `tail_bytes` bytes.

    `limit_bytes` limits a piece that starts at `after`, which defaults to 0. Errors: `not_found`
    for an unknown trial. `invalid` if both `after` and `tail_bytes` are given.
    """
    if after is not None and tail_bytes is not None:
        raise invalid("tail_bytes", "must not be used together with after", "remove all but one")
    # Read the state before the log: the log of a trial that has ended is complete.
    state = trials.get_trial(services, trial_id)
    ended = state.status.is_final
    logs = TrialLogs(services.table, services.objects)
    if tail_bytes is None:
        piece = logs.read_text(trial_id, state.epoch, after or 0, limit_bytes, ended)
    else:
        piece = logs.read_tail(trial_id, state.epoch, tail_bytes, ended)
    return Log(text=piece.text, next=piece.end, complete=ended and piece.end >= piece.total)


@router.get("/trials/{trial_id}/logs/lines")
@require_role(*USER_ROLES)
def read_lines(
    trial_id: TrialId,
    services: ServicesParameter,
    wanted: Annotated[LineFilter, Depends(_line_filter)],
    after: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_ITEMS_MAX)] = PAGE_ITEMS_DEFAULT,
) -> Lines:
    """Search a trial's log for lines that meet all conditions, in the order of the log.

    `after` is the `next_cursor` of the previous page. `level` is the lowest level; a line without a
    level counts as INFO. `search` ignores case. `since_ms` and `until_ms` are epoch ms. Errors:
    `not_found` for an unknown trial. `invalid` for a cursor of another list.
    """
    state = trials.get_trial(services, trial_id)
    result = find_lines(
        TrialLogs(services.table, services.objects),
        trial_id,
        state.epoch,
        _place(after),
        ended=state.status.is_final,
        line_filter=wanted,
        limit=limit,
    )
    complete = state.status.is_final and result.is_end
    cursor = None if complete else encode_cursor("lines", tuple(map(int, result.next)))
    items = [Line.model_validate(line, from_attributes=True) for line in result.lines]
    return Lines(items=items, next_cursor=cursor, complete=complete)


def _place(cursor: str | None) -> LogPosition:
    if cursor is None:
        return LogPosition()
    offset, is_inside = decode_cursor(cursor, "lines", (int, int))
    return LogPosition(max(0, int(offset)), bool(is_inside))
