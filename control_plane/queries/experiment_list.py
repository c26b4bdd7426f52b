"""The list of experiments: those that fit a filter, by age or in another order.

Each request reads a bounded number of rows, whatever there is. In the order of ids a page that was
broken off goes on with its cursor; other orders need all that they sort, so that they sort the
newest experiments and say below which id they looked at none.

What is sorted by is in the rows of the list, but for the figures of experiments that run or that an
older release created: those take a row of their own each.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from control_plane.actors import addresses
from control_plane.actors.experiment.listing import ListingRow, decode_listings
from control_plane.actors.experiment.state import LISTING, ExperimentState
from control_plane.actors.metadata_terms import metadata_partition
from control_plane.actors.records import JobKind, Status
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, decode_head
from control_plane.errors import invalid
from control_plane.queries.experiment import Experiment, describe_experiments
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Key, StateTable

Sort = Literal["id", "submitted", "name", "state", "user", "progress", "metric", "cost"]
Order = Literal["asc", "desc"]

# Rows of the list that one request reads, and those that it reads at once.
LISTED_MAX = 5_000
_PAGE_ROWS = 1_000
# Experiments that one request reads by a row each: those with certain metadata, and those whose
# state an order needs.
LOOKED_UP_MAX = 1_000
_FIRST, _LAST = " ", "\x7f"
ALL_KINDS = "all"
# Ids are given in the order of submission, so that both are the order of the rows.
_BY_ID = ("id", "submitted")
# The orders by the figures of a row, with the name of the figure.
_FIGURES = {"metric": "metric", "progress": "progress", "cost": "cost_micros"}


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


class _Entry(NamedTuple):
    """An experiment in the list: its sort key there, and its row."""

    sort: str
    row: ListingRow

    @property
    def number(self) -> int:
        return int(self.sort)


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
        found, cursor = _read_page(services.table, shown, is_shown, page, order == "desc")
        items = describe_experiments(services, [one.number for one in found])
        return ExperimentPage(items=items, next_cursor=cursor)
    name = f"experiments {sort} {order}"
    after = page.start_after(name, (int,))
    first = 0 if after is None else max(0, int(after[0]))
    found, left_out_before = _read_newest(services.table, shown, is_shown)
    if len(known := _with_states_to_read(found, sort)) < len(found):
        found, left_out_before = known, known[-1].number
    found = _sort_entries(services, found, sort, order)
    end = first + page.limit
    return ExperimentPage(
        items=describe_experiments(services, [one.number for one in found[first:end]]),
        next_cursor=encode_cursor(name, (end,)) if end < len(found) else None,
        left_out_before=left_out_before,
    )


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
        if shown.workspace not in (None, entry.workspace):
            return False
        if shown.project not in (None, entry.project) or shown.user not in (None, entry.user):
            return False
        return not part or part in entry.name.casefold()

    return is_shown


def _read_page(
    table: StateTable,
    shown: ExperimentFilter,
    is_shown: Callable[[ListingRow], bool],
    page: PageRequest,
    descending: bool,
) -> tuple[list[_Entry], str | None]:
    """Read a page in the order of ids, and the cursor of what comes after."""
    partition = _partition(shown)
    name = partition if descending else f"{partition} asc"
    after = page.start_after(name, (str,))
    start = None if after is None else str(after[0])
    # Where all of them fit, one reading has the page and says whether it is the last.
    candidates = _read_candidates(table, shown, start, descending, page.limit + 1)
    found: list[_Entry] = []
    for number, (sort, row) in enumerate(candidates, 1):
        if row is not None and is_shown(row):
            found.append(_Entry(sort, row))
        if len(found) == page.limit or number == _read_max(shown):
            is_end = next(candidates, None) is None
            return found, None if is_end else encode_cursor(name, (sort,))
    return found, None


def _read_newest(
    table: StateTable, shown: ExperimentFilter, is_shown: Callable[[ListingRow], bool]
) -> tuple[list[_Entry], int | None]:
    """Read what fits of the newest experiments, and the id below which none was read."""
    found: list[_Entry] = []
    candidates = _read_candidates(table, shown, None, True, _PAGE_ROWS)
    for number, (sort, row) in enumerate(candidates, 1):
        if row is not None and is_shown(row):
            found.append(_Entry(sort, row))
        if number == _read_max(shown):
            return found, None if next(candidates, None) is None else int(sort)
    return found, None


def _partition(shown: ExperimentFilter) -> str:
    return metadata_partition(shown.terms[0]) if shown.terms else LISTING


def _read_max(shown: ExperimentFilter) -> int:
    return LOOKED_UP_MAX if shown.terms else LISTED_MAX


def _read_candidates(
    table: StateTable, shown: ExperimentFilter, after: str | None, descending: bool, rows_first: int
) -> Iterator[tuple[str, ListingRow | None]]:
    """Yield the sort keys of experiments with the filter's terms, and their rows of the list; None
    for one that lacks a term or is not listed. `rows_first` are read at first, then more at once.
    """
    first, last = _FIRST, _LAST
    if after is not None:
        first, last = (first, after) if descending else (f"{after} ", last)
    partition = _partition(shown)
    size_max = GET_MAX if shown.terms else _PAGE_ROWS
    size = min(rows_first, size_max)
    while True:
        page = table.query(partition, first, last, limit=size, descending=descending)
        if shown.terms:
            yield from _look_up(table, shown.terms[1:], [row.key.sort for row in page.rows])
        else:
            listed = decode_listings(row.body for row in page.rows)
            yield from zip((row.key.sort for row in page.rows), listed, strict=True)
        if page.next_sort is None:
            return
        first, last = (first, page.next_sort) if descending else (page.next_sort, last)
        size = min(2 * size, size_max)


def _look_up(
    table: StateTable, terms: Sequence[str], sorts: Sequence[str]
) -> Iterator[tuple[str, ListingRow | None]]:
    """Yield the rows of the list for at most GET_MAX sort keys; None without one of the terms."""
    if not sorts:
        return
    lacking: set[str] = set()
    for term in terms:
        found = table.get_many([Key(metadata_partition(term), sort) for sort in sorts])
        lacking |= {sort for sort, row in zip(sorts, found, strict=True) if row is None}
    rows = [row for row in table.get_many([Key(LISTING, sort) for sort in sorts]) if row]
    listed = dict(
        zip((row.key.sort for row in rows), decode_listings(row.body for row in rows), strict=True)
    )
    for sort in sorts:
        yield sort, None if sort in lacking else listed.get(sort)


def _with_states_to_read(found: list[_Entry], sort: Sort) -> list[_Entry]:
    """The first of those that are to be sorted, as many as need LOOKED_UP_MAX states."""
    states = 0
    for place, one in enumerate(found):
        states += sort in _FIGURES and one.row.figures is None
        if states > LOOKED_UP_MAX:
            return found[:place]
    return found


def _sort_entries(
    services: Services, found: Sequence[_Entry], sort: Sort, order: Order
) -> list[_Entry]:
    """Sort what is given newest first; what has no value comes last, the newest first."""
    values = _sort_values(services, found, sort)
    known = [(value, one) for value, one in zip(values, found, strict=True) if value is not None]
    # A stable sort, which keeps the newest of equals first in both orders.
    known.sort(key=lambda pair: pair[0], reverse=order == "desc")
    unknown = [one for value, one in zip(values, found, strict=True) if value is None]
    return [*(one for _, one in known), *unknown]


def _sort_values(
    services: Services, found: Sequence[_Entry], sort: Sort
) -> list[str | float | None]:
    if sort not in _FIGURES:
        return [str(getattr(one.row, sort)).casefold() for one in found]
    numbers = [one.number for one in found if one.row.figures is None]
    states = dict(zip(numbers, _read_states(services.table, numbers), strict=True))
    now_ms = services.now_ms()
    return [
        _number_of(states[one.number], sort, now_ms)
        if one.row.figures is None
        else _checked_number(getattr(one.row.figures, _FIGURES[sort]))
        for one in found
    ]


def _number_of(state: ExperimentState | None, sort: Sort, now_ms: int) -> float | None:
    if state is None:
        return None
    if sort == "cost":
        return state.bill.spent_micros(now_ms)
    return _checked_number(state.progress if sort == "progress" else state.best_metric)


def _checked_number(number: float | None) -> float | None:
    """A number that has a place in an order."""
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
