"""The list of experiments: filtered, and sorted by id or by another column.

Each request reads a bounded number of rows. In id order, a page that reaches the bound ends early,
and its cursor continues there. Other orders must read all experiments that they sort. They sort the
newest experiments only and report the id below which no experiment was read.

The list's rows hold the sorted values. Three of them are the figures: the best metric, the progress
and the cost. The figures of a running experiment, or of an experiment that an older release
created, are read from the experiment's own row instead.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from control_plane.actors import addresses
from control_plane.actors.experiment.listing import ListingRow, decode_listings
from control_plane.actors.experiment.state import LISTING, ExperimentState
from control_plane.actors.metadata_terms import metadata_partition
from control_plane.actors.records import JobKind
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, decode_head
from control_plane.errors import invalid
from control_plane.queries.experiment import Experiment, describe_experiments
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.state_filter import StateFilter, parse_experiment_states
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Key, StateTable

Sort = Literal["id", "submitted", "name", "state", "user", "progress", "metric", "cost"]
Order = Literal["asc", "desc"]

# The most rows of the list that a query reads.
_PAGE_ROWS = 1_000
_FIRST, _LAST = " ", "\x7f"
ALL_KINDS = "all"
# Ids increase with the time of submission, so that the rows are already in both orders.
_BY_ID = ("id", "submitted")
# The sort orders by a figure of a row, and the field of that figure.
_FIGURES = {"metric": "metric", "progress": "progress", "cost": "cost_micros"}


class ExperimentPage(Page[Experiment]):
    """A page of experiments.

    `left_out_before`: no experiment with an id below this was read, so that the order leaves older
    experiments out. Null if all experiments were read, and always null in the order of ids.
    """

    left_out_before: int | None = None


@dataclass(frozen=True)
class ExperimentFilter:
    """Conditions on listed experiments, all of which must hold. None means no condition."""

    states: str | None = None
    """The allowed conditions and stored statuses, separated by commas."""
    user: str | None = None
    label: str | None = None
    """A label that the experiment has."""
    name: str | None = None
    """A part of the name. Upper and lower case are equal."""
    archived: Literal["false", "true", "all"] = "false"
    workspace: str | None = None
    project: str | None = None
    terms: tuple[str, ...] = ()
    """Metadata terms (actors/metadata_terms.py) that the experiment has."""
    kinds: str = JobKind.EXPERIMENT
    """The allowed job kinds, separated by commas, or `all`."""
    has_failed_trials: bool | None = None
    """Whether a trial of the experiment has failed."""


class _Entry(NamedTuple):
    """An experiment of the list."""

    sort: str
    """The sort key of the row, which holds the experiment's id."""
    row: ListingRow

    @property
    def experiment_id(self) -> int:
        """The experiment's id."""
        return int(self.sort)


def list_experiments(
    services: Services,
    page: PageRequest,
    shown: ExperimentFilter,
    sort: Sort = "id",
    order: Order = "desc",
) -> ExperimentPage:
    """Return a page of the experiments that match the filter.

    A page with a cursor may be short or empty, because a request reads a limited number of rows,
    and because the condition of an active experiment is known after its page was read. Orders other
    than that of ids sort the newest experiments only, with experiments without the value last.

    Args:
        services: the services that read the list.
        page: the request.
        shown: the conditions.
        sort: the column. `submitted` is the order of ids.
        order: ascending or descending.

    Raises:
        RequestError: invalid, for an unknown state or kind, or a cursor of another list or order.
    """
    states = parse_experiment_states(shown.states)
    is_shown = _predicate(shown, states)
    if sort in _BY_ID:
        entries, cursor = _read_page(services, shown, is_shown, page, order == "desc")
        items = _matching_items(services, entries, shown, states)
        return ExperimentPage(items=items, next_cursor=cursor)
    name = f"experiments {sort} {order}"
    after = page.start_after(name, (int,))
    first = 0 if after is None else max(0, int(after[0]))
    entries, left_out_before = _read_newest(services, shown, is_shown)
    if len(sortable := _limit_states_to_read(services, entries, sort)) < len(entries):
        entries, left_out_before = sortable, sortable[-1].experiment_id
    entries = _sort_entries(services, entries, sort, order)
    end = first + page.limit
    return ExperimentPage(
        items=_matching_items(services, entries[first:end], shown, states),
        next_cursor=encode_cursor(name, (end,)) if end < len(entries) else None,
        left_out_before=left_out_before,
    )


def _matching_items(
    services: Services, entries: Sequence[_Entry], shown: ExperimentFilter, states: StateFilter
) -> list[Experiment]:
    """Read the experiments of list rows, and return the experiments that match the filter exactly.

    The list's rows lack the condition of active experiments, and rows of older releases lack
    failures of trials.
    """
    items = describe_experiments(services, [entry.experiment_id for entry in entries])
    return [
        item
        for item in items
        if states.matches(item.state, item.condition)
        and shown.has_failed_trials in (None, item.trials.errored > 0)
    ]


def _predicate(shown: ExperimentFilter, states: StateFilter) -> Callable[[ListingRow], bool]:
    """Return a predicate for the conditions of the filter, except the metadata terms.

    The predicate may accept an experiment that does not match (`_matching_items`). Raises
    RequestError, invalid, for an unknown kind.
    """
    kinds = _parse_kinds(shown.kinds)
    part = (shown.name or "").casefold()
    failed = shown.has_failed_trials

    def is_shown(entry: ListingRow) -> bool:
        if shown.archived != "all" and entry.archived != (shown.archived == "true"):
            return False
        if entry.kind not in kinds:
            return False
        if shown.label is not None and shown.label not in entry.labels:
            return False
        if not states.may_match_experiment(entry.state):
            return False
        if failed is not None and entry.has_failed_trials not in (None, failed):
            return False
        if shown.workspace not in (None, entry.workspace):
            return False
        if shown.project not in (None, entry.project) or shown.user not in (None, entry.user):
            return False
        return not part or part in entry.name.casefold()

    return is_shown


def _read_page(
    services: Services,
    shown: ExperimentFilter,
    is_shown: Callable[[ListingRow], bool],
    page: PageRequest,
    descending: bool,
) -> tuple[list[_Entry], str | None]:
    """Read a page in the order of ids.

    Returns:
        The matching experiments, and the cursor of the next page, or None on the last page. Reading
        stops after `_read_max` rows, so that a page with a cursor may be short or empty.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """
    partition = _partition(shown)
    name = partition if descending else f"{partition} asc"
    after = page.start_after(name, (str,))
    start = None if after is None else str(after[0])
    # If every experiment matches, a single query reads the page and the row after the page.
    candidates = _read_candidates(services.table, shown, start, descending, page.limit + 1)
    entries: list[_Entry] = []
    for rows_read, (sort, row) in enumerate(candidates, 1):
        if row is not None and is_shown(row):
            entries.append(_Entry(sort, row))
        if len(entries) == page.limit or rows_read == _read_max(services, shown):
            is_end = next(candidates, None) is None
            return entries, None if is_end else encode_cursor(name, (sort,))
    return entries, None


def _read_newest(
    services: Services, shown: ExperimentFilter, is_shown: Callable[[ListingRow], bool]
) -> tuple[list[_Entry], int | None]:
    """Read the newest experiments, at most `_read_max` rows.

    Returns:
        The matching experiments, newest first, and the id below which no experiment was read. The
        id is None if all experiments were read.
    """
    entries: list[_Entry] = []
    candidates = _read_candidates(services.table, shown, None, True, _PAGE_ROWS)
    for rows_read, (sort, row) in enumerate(candidates, 1):
        if row is not None and is_shown(row):
            entries.append(_Entry(sort, row))
        if rows_read == _read_max(services, shown):
            return entries, None if next(candidates, None) is None else int(sort)
    return entries, None


def _partition(shown: ExperimentFilter) -> str:
    """Return the partition to read: the first term's index, or the list if no term is asked for."""
    return metadata_partition(shown.terms[0]) if shown.terms else LISTING


def _read_max(services: Services, shown: ExperimentFilter) -> int:
    """Return the most experiments that a request with this filter reads."""
    limits = services.limits
    return limits.looked_up_experiments_max if shown.terms else limits.listed_experiments_max


def _read_candidates(
    table: StateTable, shown: ExperimentFilter, after: str | None, descending: bool, rows_first: int
) -> Iterator[tuple[str, ListingRow | None]]:
    """Yield the sort key and list row of each experiment after the sort key `after`.

    The row is None if the experiment lacks one of the filter's terms or is not in the list. The
    filter's other conditions are not tested. Rows are read during the iteration. The first query
    reads `rows_first` rows; each later query reads twice as many, up to a limit.

    Args:
        table: the state table.
        shown: the filter, of which only the terms count.
        after: the sort key of the last row of the previous page; None for the beginning.
        descending: the newest experiment first.
        rows_first: the rows of the first query.
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
    """Yield each of the sort keys, at most GET_MAX, with the row of the list.

    The row is None if the experiment lacks one of the metadata terms or is not in the list. Yield
    nothing, without a read, for no sort keys.

    Args:
        table: the state table.
        terms: the metadata terms that the experiments must have.
        sorts: the sort keys of rows, which are ids of experiments.
    """
    if not sorts:
        return
    unmatched: set[str] = set()
    for term in terms:
        term_rows = table.get_many([Key(metadata_partition(term), sort) for sort in sorts])
        unmatched |= {sort for sort, row in zip(sorts, term_rows, strict=True) if row is None}
    rows = [row for row in table.get_many([Key(LISTING, sort) for sort in sorts]) if row]
    listed = dict(
        zip((row.key.sort for row in rows), decode_listings(row.body for row in rows), strict=True)
    )
    for sort in sorts:
        yield sort, None if sort in unmatched else listed.get(sort)


def _limit_states_to_read(services: Services, entries: list[_Entry], sort: Sort) -> list[_Entry]:
    """Return the first of `entries`, as many as need at most `looked_up_experiments_max` states to
    be sorted.

    A state is needed only for a sort by a figure (best metric, progress or cost), and only for an
    entry whose row has no figures.
    """
    states = 0
    for place, entry in enumerate(entries):
        states += sort in _FIGURES and entry.row.figures is None
        if states > services.limits.looked_up_experiments_max:
            return entries[:place]
    return entries


def _sort_entries(
    services: Services, entries: Sequence[_Entry], sort: Sort, order: Order
) -> list[_Entry]:
    """Sort entries that are given newest first.

    Entries with equal values stay newest first. Entries without a value come last, newest first. A
    sort by a figure (best metric, progress or cost) reads the states of experiments whose rows have
    no figures.
    """
    valued = list(zip(_sort_values(services, entries, sort), entries, strict=True))
    known = [(value, entry) for value, entry in valued if value is not None]
    # A stable sort keeps the newest of equals first in both orders.
    known.sort(key=lambda pair: pair[0], reverse=order == "desc")
    unknown = [entry for value, entry in valued if value is None]
    return [*(entry for _, entry in known), *unknown]


def _sort_values(
    services: Services, entries: Sequence[_Entry], sort: Sort
) -> list[str | float | None]:
    """Return the value by which each entry is sorted; None if the entry has no value.

    Texts are compared without case. For a sort by a figure (best metric, progress or cost), the
    states of experiments whose rows have no figures are read.
    """
    if sort not in _FIGURES:
        return [str(getattr(entry.row, sort)).casefold() for entry in entries]
    ids_to_read = [entry.experiment_id for entry in entries if entry.row.figures is None]
    states = dict(zip(ids_to_read, _read_states(services.table, ids_to_read), strict=True))
    now_ms = services.now_ms()
    return [
        _figure_of(states[entry.experiment_id], sort, now_ms)
        if entry.row.figures is None
        else _sortable_number(getattr(entry.row.figures, _FIGURES[sort]))
        for entry in entries
    ]


def _figure_of(state: ExperimentState | None, sort: Sort, now_ms: int) -> float | None:
    """Return the figure by which an experiment is sorted: the cost in micro-dollars, the progress
    or the best metric.

    Return None without the experiment or a figure, and for NaN.

    Args:
        state: the state of the experiment. None without the experiment.
        sort: `cost`, `progress` or `metric`.
        now_ms: the present time in epoch ms, up to which running trials cost money.
    """
    if state is None:
        return None
    if sort == "cost":
        return state.bill.spent_micros(now_ms)
    return _sortable_number(state.progress if sort == "progress" else state.best_metric)


def _sortable_number(number: float | None) -> float | None:
    """Return the number, but None instead of NaN, because NaN has no place in an order."""
    return None if number is None or math.isnan(number) else number


def _read_states(table: StateTable, ids: Sequence[int]) -> Iterator[ExperimentState | None]:
    """Yield the states of experiments, in the order of `ids`. None for an experiment that does not
    exist.

    The reads bypass the engine's cache, so that a long list does not evict states that other
    requests use. Deleted experiments are included.
    """
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


def _parse_kinds(text: str) -> frozenset[str]:
    """Parse a comma list of job kinds; `all` stands for every kind.

    Raises:
        RequestError: invalid, for an unknown kind.
    """
    names = frozenset(text.split(","))
    for name in sorted(names - set(JobKind) - {ALL_KINDS}):
        known = ", ".join((*JobKind, ALL_KINDS))
        raise invalid("kind", f"{name!r:.40} is not a kind; expected one of {known}")
    return frozenset(JobKind) if ALL_KINDS in names else names
