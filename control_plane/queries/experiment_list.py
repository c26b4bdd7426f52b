"""The list of experiments: those that fit a filter, by age or in another order.

Each request reads a bounded number of rows, whatever there is. In the order of ids a page that was
broken off goes on with its cursor; other orders need all that they sort, so that they sort the
newest experiments and say below which id they looked at none.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.experiment.state import (
    LISTING,
    ExperimentState,
    ListingRow,
    decode_listing,
)
from control_plane.actors.metadata_terms import metadata_partition
from control_plane.actors.records import JobKind, Status
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, decode_head
from control_plane.errors import invalid
from control_plane.queries.experiment import Experiment, experiment_fields
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.single_run import read_single_runs
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Key, Row, StateTable

Sort = Literal["id", "submitted", "name", "state", "user", "progress", "metric", "cost"]
Order = Literal["asc", "desc"]

# Rows of the list that one request reads.
LISTED_MAX = 5_000
# Experiments that one request reads by a row each: those with certain metadata, and those whose
# state an order needs.
LOOKED_UP_MAX = 1_000
_FIRST, _LAST = " ", "\x7f"
ALL_KINDS = "all"
# What the list's rows do not tell.
_BY_STATE = ("progress", "metric", "cost")
# Ids are given in the order of submission, so that both are the order of the rows.
_BY_ID = ("id", "submitted")


class ExperimentPage(Page[Experiment]):
    """A page of experiments. Of those with an id below `left_out_before` an order knows nothing;
    null where it knows all.
    """

    left_out_before: int | None = None


@dataclass(frozen=True)
class ExperimentFilter:
    """The experiments that a list shows: all that is given must fit. `states` and `kinds` are comma
    lists, `kinds` may be `all`; `name` is a part of the name, `terms` are of their metadata
    (metadata_terms.py).
    """

    states: str | None = None
    user: str | None = None
    label: str | None = None
    name: str | None = None
    archived: Literal["false", "true", "all"] = "false"
    workspace: str | None = None
    project: str | None = None
    terms: tuple[str, ...] = ()
    kinds: str = JobKind.EXPERIMENT


def list_experiments(
    services: Services,
    page: PageRequest,
    shown: ExperimentFilter,
    sort: Sort = "id",
    order: Order = "desc",
) -> ExperimentPage:
    """List the experiments that fit the filter; RequestError invalid for a state or a kind."""
    is_shown = _predicate(shown)
    if sort in _BY_ID:
        rows, cursor = _read_page(services.table, shown, is_shown, page, order == "desc")
        return ExperimentPage(items=_answers(services, rows), next_cursor=cursor)
    name = f"experiments {sort} {order}"
    after = page.start_after(name, (int,))
    first = 0 if after is None else max(0, int(after[0]))
    rows, left_out_before = _read_newest(services.table, shown, is_shown)
    if sort in _BY_STATE and len(rows) > LOOKED_UP_MAX:
        rows = rows[:LOOKED_UP_MAX]
        left_out_before = int(rows[-1].key.sort)
    rows = _sorted_rows(services, rows, sort, order)
    end = first + page.limit
    return ExperimentPage(
        items=_answers(services, rows[first:end]),
        next_cursor=encode_cursor(name, (end,)) if end < len(rows) else None,
        left_out_before=left_out_before,
    )


def _answers(services: Services, rows: Sequence[Row]) -> list[Experiment]:
    """The answers of rows; an experiment that was deleted since its row was read is left out."""
    loaded = [services.agents.read_experiment(int(row.key.sort)) for row in rows]
    present = [pair for pair in loaded if pair is not None]
    runs = read_single_runs(services, present)
    return [
        Experiment(**experiment_fields(services, *pair), run=run)
        for pair, run in zip(present, runs, strict=True)
    ]


def _predicate(shown: ExperimentFilter) -> Callable[[ListingRow], bool]:
    states, kinds = _parse_states(shown.states), _parse_kinds(shown.kinds)
    part = (shown.name or "").casefold()

    def is_shown(entry: ListingRow) -> bool:
        if shown.archived != "all" and entry.archived != (shown.archived == "true"):
            return False
        if entry.kind not in kinds:
            return False
        if shown.label is not None and shown.label not in entry.labels:
            return False
        if states and entry.state not in states:
            return False
        groups = (entry.workspace, entry.project)
        if any(
            wanted not in (None, name)
            for wanted, name in zip((shown.workspace, shown.project), groups, strict=True)
        ):
            return False
        return part in entry.name.casefold() and shown.user in (None, entry.user)

    return is_shown


def _read_page(
    table: StateTable,
    shown: ExperimentFilter,
    is_shown: Callable[[ListingRow], bool],
    page: PageRequest,
    descending: bool,
) -> tuple[list[Row], str | None]:
    """Read a page in the order of ids, and the cursor of what comes after."""
    partition = _partition(shown)
    name = partition if descending else f"{partition} asc"
    after = page.start_after(name, (str,))
    found = _read_candidates(table, shown, None if after is None else str(after[0]), descending)
    rows: list[Row] = []
    for number, (sort, row) in enumerate(found, 1):
        if row is not None and is_shown(decode_listing(row.body)):
            rows.append(row)
        if len(rows) == page.limit or number == _read_max(shown):
            is_end = next(found, None) is None
            return rows, None if is_end else encode_cursor(name, (sort,))
    return rows, None


def _read_newest(
    table: StateTable, shown: ExperimentFilter, is_shown: Callable[[ListingRow], bool]
) -> tuple[list[Row], int | None]:
    """Read what fits of the newest experiments, and the id below which none was read."""
    rows: list[Row] = []
    found = _read_candidates(table, shown, None, True)
    for number, (sort, row) in enumerate(found, 1):
        if row is not None and is_shown(decode_listing(row.body)):
            rows.append(row)
        if number == _read_max(shown):
            return rows, None if next(found, None) is None else int(sort)
    return rows, None


def _partition(shown: ExperimentFilter) -> str:
    return metadata_partition(shown.terms[0]) if shown.terms else LISTING


def _read_max(shown: ExperimentFilter) -> int:
    return LOOKED_UP_MAX if shown.terms else LISTED_MAX


def _read_candidates(
    table: StateTable, shown: ExperimentFilter, after: str | None, descending: bool
) -> Iterator[tuple[str, Row | None]]:
    """Yield the sort keys of experiments with the filter's terms, and their rows of the list; None
    for one that lacks a term or is not listed.
    """
    first, last = _FIRST, _LAST
    if after is not None:
        first, last = (first, after) if descending else (f"{after} ", last)
    partition = _partition(shown)
    size = GET_MAX if shown.terms else 1_000
    while True:
        page = table.query(partition, first, last, limit=size, descending=descending)
        if shown.terms:
            yield from _look_up(table, shown.terms[1:], [row.key.sort for row in page.rows])
        else:
            yield from ((row.key.sort, row) for row in page.rows)
        if page.next_sort is None:
            return
        first, last = (first, page.next_sort) if descending else (page.next_sort, last)


def _look_up(
    table: StateTable, terms: Sequence[str], sorts: Sequence[str]
) -> Iterator[tuple[str, Row | None]]:
    """Yield the rows of the list for at most GET_MAX sort keys; None without one of the terms."""
    if not sorts:
        return
    lacking: set[str] = set()
    for term in terms:
        found = table.get_many([Key(metadata_partition(term), sort) for sort in sorts])
        lacking |= {sort for sort, row in zip(sorts, found, strict=True) if row is None}
    rows = table.get_many([Key(LISTING, sort) for sort in sorts])
    for sort, row in zip(sorts, rows, strict=True):
        yield sort, None if sort in lacking else row


def _sorted_rows(services: Services, rows: Sequence[Row], sort: Sort, order: Order) -> list[Row]:
    """Rows, which are newest first, in an order; what has no value is last, the newest first."""
    values: list[str | float | None]
    if sort in _BY_STATE:
        states = _read_states(services.table, [int(row.key.sort) for row in rows])
        values = [_number_of(state, sort, services.now_ms()) for state in states]
    else:
        values = [str(getattr(decode_listing(row.body), sort)).casefold() for row in rows]
    known = [(value, row) for value, row in zip(values, rows, strict=True) if value is not None]
    # A stable sort, which keeps the newest of equals first in both orders.
    known.sort(key=lambda pair: pair[0], reverse=order == "desc")
    unknown = [row for value, row in zip(values, rows, strict=True) if value is None]
    return [*(row for _, row in known), *unknown]


def _number_of(state: ExperimentState | None, sort: Sort, now_ms: int) -> float | None:
    if state is None:
        return None
    if sort == "cost":
        return state.bill.spent_micros(now_ms)
    number = state.progress if sort == "progress" else state.best_metric
    return None if number is None or math.isnan(number) else number


def _read_states(table: StateTable, ids: Sequence[int]) -> Iterator[ExperimentState | None]:
    """Read the states of experiments past the engine's cache, which others need more."""
    names = [addresses.experiment(number) for number in ids]
    for first in range(0, len(names), GET_MAX):
        batch = names[first : first + GET_MAX]
        rows = table.get_many([Key(name, HEAD) for name in batch])
        for name, row in zip(batch, rows, strict=True):
            if row is None:
                yield None
                continue
            state = actor_type_at(name).decode_state(decode_head(row.body)[1])
            yield state if isinstance(state, ExperimentState) else None


def _parse_states(text: str | None) -> frozenset[str]:
    names = frozenset(text.upper().split(",")) if text else frozenset()
    for name in sorted(names - set(Status)):
        known = ", ".join(Status)
        raise invalid("state", f"{name!r:.40} is not a state; expected one of {known}")
    return names


def _parse_kinds(text: str) -> frozenset[str]:
    names = frozenset(text.split(","))
    for name in sorted(names - set(JobKind) - {ALL_KINDS}):
        known = ", ".join((*JobKind, ALL_KINDS))
        raise invalid("kind", f"{name!r:.40} is not a kind; expected one of {known}")
    return frozenset(JobKind) if ALL_KINDS in names else names
