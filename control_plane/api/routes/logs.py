"""Routes of trials' logs: as text, and as lines with time, rank and level."""

from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import Field

from control_plane.access.principals import USER_ROLES
from control_plane.actors.trial.state import TrialState
from control_plane.agents.log_lines import LogLinePage, find_earlier_lines, find_lines
from control_plane.agents.log_scan import LineFilter, LogPosition
from control_plane.agents.logs import TrialLogs
from control_plane.api.dependencies import (
    CURSOR_CHARACTERS_MAX,
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
    ExperimentId,
    PageParameters,
    ServicesParameter,
    TrialId,
)
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.errors import invalid
from control_plane.queries import trial as trials
from control_plane.queries.answer import Answer
from control_plane.queries.experiment_logs import TrialLine, find_experiment_lines
from control_plane.queries.pages import Page, decode_cursor, encode_cursor

LOG_BYTES_DEFAULT = 64 * 1024
LOG_BYTES_MAX = 1024 * 1024
RANKS_MAX = 16
TRIALS_MAX = 100

router = guarded_router("logs")

LogBytes = Annotated[int, Query(ge=4, le=LOG_BYTES_MAX)]
TimeMs = Annotated[int | None, Query(ge=0, le=2**53)]
Offset = Annotated[int | None, Query(ge=0, le=2**53)]
QueriedTrial = Annotated[int, Field(ge=1, le=10**12 - 1)]
Rank = Annotated[int, Field(ge=0, le=99_999)]
Level = Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class Log(Answer):
    """A piece of a log.

    `next` is the offset of the next piece in bytes. `complete` is true if the trial has ended and
    the log ends with this piece. `deleted_ms` is the time at which the log of earlier runs was
    deleted after its retention, or null.
    """

    text: str
    next: int
    complete: bool
    deleted_ms: int | None = None


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
    `next_cursor` is null after the last line of an ended trial. `previous` is the offset to pass as
    `before` for earlier lines, or null at the beginning of the log. `size` is the present size of
    the log in bytes. `deleted_ms` is the time at which the log of earlier runs was deleted after
    its retention, or null.
    """

    items: list[Line]
    next_cursor: str | None
    complete: bool
    previous: int | None
    size: int
    deleted_ms: int | None = None


def _line_filter(
    since_ms: TimeMs = None,
    until_ms: TimeMs = None,
    rank: Annotated[list[Rank] | None, Query(max_length=RANKS_MAX)] = None,
    level: Level | None = None,
    search: Annotated[str, Query(max_length=1000)] = "",
) -> LineFilter:
    return LineFilter(since_ms, until_ms, frozenset(rank or ()), level, search)


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
    return Log(
        text=piece.text,
        next=piece.end,
        complete=ended and piece.end >= piece.total,
        deleted_ms=state.expired_data.logs_ms or None,
    )


@router.get("/trials/{trial_id}/logs/lines")
@require_role(*USER_ROLES)
def read_lines(
    trial_id: TrialId,
    services: ServicesParameter,
    wanted: Annotated[LineFilter, Depends(_line_filter)],
    after: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
    at: Offset = None,
    before: Offset = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_ITEMS_MAX)] = PAGE_ITEMS_DEFAULT,
) -> Lines:
    """Search a trial's log for lines that meet all conditions, in the order of the log.

    The search continues at `after`, the `next_cursor` of a page, or begins with the first line at
    offset `at` or later, or with the first line of the log. With `before`, the page has the last
    lines before this offset instead; an offset beyond the end returns the last lines of the log.
    `rank` may be repeated. `level` is the lowest level; a line without a level counts as INFO.
    `search` ignores case. `since_ms` and `until_ms` are epoch ms. Errors: `not_found` for an
    unknown trial. `invalid` for a cursor of another list, or if several of `after`, `at` and
    `before` are given.
    """
    if sum(value is not None for value in (after, at, before)) > 1:
        raise invalid("after", "must not be used together with at or before", "remove all but one")
    state = trials.get_trial(services, trial_id)
    logs = TrialLogs(services.table, services.objects)
    ended = state.status.is_final
    if before is not None:
        result = find_earlier_lines(
            logs, trial_id, state.epoch, before, ended=ended, line_filter=wanted, limit=limit
        )
    else:
        place = _place(after) if at is None else LogPosition(at, True)
        result = find_lines(
            logs, trial_id, state.epoch, place, ended=ended, line_filter=wanted, limit=limit
        )
    return _lines(result, state, ended=ended)


@router.get("/experiments/{experiment_id}/logs/lines")
@require_role(*USER_ROLES)
def list_experiment_lines(
    experiment_id: ExperimentId,
    page: PageParameters,
    services: ServicesParameter,
    wanted: Annotated[LineFilter, Depends(_line_filter)],
    trial: Annotated[list[QueriedTrial] | None, Query(max_length=TRIALS_MAX)] = None,
) -> Page[TrialLine]:
    """Search the logs of an experiment's trials for lines that meet all conditions.

    The lines of a page are sorted by time. Pages read trial after trial, and a page may be short or
    empty: to sort the lines of all trials, read a short period to its last page. `trial` may be
    repeated, and limits the search to these trials. The other conditions are those of a trial's
    log; lines without a time do not match a period. Errors: `not_found` for an unknown experiment.
    `invalid` for a cursor of another list, and for a trial of another experiment.
    """
    chosen = sorted(set(trial or ()))
    return find_experiment_lines(services, experiment_id, page, wanted, chosen)


def _lines(page: LogLinePage, state: TrialState, *, ended: bool) -> Lines:
    """Convert a page of lines to the answer. `ended`: whether the log will not grow any more."""
    complete = ended and page.is_end
    return Lines(
        items=[Line.model_validate(line, from_attributes=True) for line in page.lines],
        next_cursor=None if complete else encode_cursor("lines", tuple(map(int, page.next))),
        complete=complete,
        previous=page.start or None,
        size=page.size,
        deleted_ms=state.expired_data.logs_ms or None,
    )


def _place(cursor: str | None) -> LogPosition:
    if cursor is None:
        return LogPosition()
    offset, is_inside = decode_cursor(cursor, "lines", (int, int))
    return LogPosition(max(0, int(offset)), bool(is_inside))
