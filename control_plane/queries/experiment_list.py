"""The list of experiments: filtered, and sorted by id or by another column.

Each request reads a bounded number of rows. In id order, a page that reaches the bound ends early,
and its cursor continues there. Other orders must read all experiments that they sort. They sort the
newest experiments only and report the id below which no experiment was read.

The listing rows decide most filters and orders. Figures, metrics and hyperparameters are read as
`listed_facts.py` describes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from control_plane.actors.experiment.listing import ListingRow, decode_listings
from control_plane.actors.experiment.state import LISTING, forks_partition
from control_plane.actors.metadata_terms import metadata_partition
from control_plane.actors.records import JobKind
from control_plane.errors import invalid
from control_plane.queries.experiment import Experiment, describe_experiments
from control_plane.queries.experiment_columns import Column
from control_plane.queries.experiment_order import BY_ID, Order, Sort, sort_entries, sort_needs
from control_plane.queries.experiment_terms import Conditions
from control_plane.queries.listed_facts import DecodedListings, Facts, ListEntry, read_facts
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.state_filter import StateFilter, parse_experiment_states
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Key, StateTable

# The most rows of the list that a query reads.
_PAGE_ROWS = 1_000
# The most experiments whose states are read to count the matching experiments.
_DECIDED_MAX = 500
_FIRST, _LAST = " ", "\x7f"
ALL_KINDS = "all"
_NO_FACTS = Facts()


class TableForm(NamedTuple):
    """The order and the columns of a list."""

    sort: Sort = "id"
    """The sorted field or column. `submitted` is the order of ids."""
    order: Order = "desc"
    columns: tuple[Column, ...] = ()
    """The columns in the field `values` of each experiment."""


_Match = Callable[[str, ListingRow], bool]
"""A predicate on the sort key and the listing row of an experiment."""


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
    conditions: Conditions = field(default_factory=Conditions)
    """The conditions of the filter's text."""

    @property
    def indexes(self) -> tuple[str, ...]:
        """The partitions with a row for each matching experiment: of the forks of an experiment,
        and of each metadata term of the parameters and of the text.
        """
        terms = dict.fromkeys((*self.terms, *self.conditions.metadata))
        forks = map(forks_partition, self.conditions.originals)
        return (*forks, *map(metadata_partition, terms))


def list_experiments(
    services: Services,
    page: PageRequest,
    shown: ExperimentFilter,
    form: TableForm,
) -> ExperimentPage:
    """Return a page of the experiments that match the filter.

    A page with a cursor may be short or empty, because a request reads a limited number of rows,
    and because the condition of an active experiment is known after its page was read. Orders other
    than that of ids sort the newest experiments only, with experiments without the value last.

    Args:
        services: the services that read the list.
        page: the request.
        shown: the conditions.
        form: the order and the columns.

    Raises:
        RequestError: invalid, for an unknown state or kind, or a cursor of another list or order.
    """
    states = parse_experiment_states(shown.states)
    is_shown = _predicate(shown, states)
    sort, order, columns = form
    if sort in BY_ID:
        read_page = _read_page_by_facts if shown.conditions.facts else _read_page
        entries, cursor = read_page(services, shown, is_shown, page, order == "desc")
        items = _matching_items(services, entries, shown, states, columns)
        return ExperimentPage(items=items, next_cursor=cursor)
    name = f"experiments {sort.text if isinstance(sort, Column) else sort} {order}"
    after = page.start_after(name, (int,))
    first = 0 if after is None else max(0, int(after[0]))
    entries, left_out_before = _read_newest(services, shown, is_shown)
    needs = shown.conditions.needs | sort_needs(sort)
    facts = read_facts(services, entries, needs) if needs else [_NO_FACTS] * len(entries)
    if len(facts) < len(entries):
        left_out_before = entries[len(facts) - 1].experiment_id
    matching = _matching(entries, facts, shown.conditions)
    entries = sort_entries(matching, sort, order)
    end = first + page.limit
    return ExperimentPage(
        items=_matching_items(services, entries[first:end], shown, states, columns),
        next_cursor=encode_cursor(name, (end,)) if end < len(entries) else None,
        left_out_before=left_out_before,
    )


class MatchingRows(NamedTuple):
    """The newest experiments that match a filter."""

    entries: Sequence[ListEntry]
    left_out_before: int | None
    """No experiment with an id below this was read. None if all experiments were read."""
    is_exact: bool
    """Whether every entry matches. The rows do not decide some conditions of active experiments,
    and a request reads the states of at most _DECIDED_MAX of these experiments.
    """


def read_matching_rows(services: Services, shown: ExperimentFilter) -> MatchingRows:
    """Read the newest experiments that match a filter, in any number, newest first.

    Raises:
        RequestError: invalid, for an unknown state or kind.
    """
    states = parse_experiment_states(shown.states)
    entries, left_out_before = _read_newest(services, shown, _predicate(shown, states))
    needs = shown.conditions.needs
    facts = read_facts(services, entries, needs) if needs else [_NO_FACTS] * len(entries)
    if len(facts) < len(entries):
        left_out_before = entries[len(facts) - 1].experiment_id
    matching = [entry for entry, _ in _matching(entries, facts, shown.conditions)]
    if states.is_empty and shown.has_failed_trials is None and not shown.conditions.items:
        return MatchingRows(matching, left_out_before, True)
    open_entries = [entry for entry in matching if not entry.is_decided]
    if len(open_entries) > _DECIDED_MAX:
        return MatchingRows(matching, left_out_before, False)
    items = _matching_items(services, open_entries, shown, states, ())
    found = {item.id for item in items}
    decided = [entry for entry in matching if entry.is_decided or entry.experiment_id in found]
    return MatchingRows(decided, left_out_before, True)


def _matching_items(
    services: Services,
    entries: Sequence[ListEntry],
    shown: ExperimentFilter,
    states: StateFilter,
    columns: Sequence[Column],
) -> list[Experiment]:
    """Read the experiments of list rows, and return the experiments that match the filter exactly.

    The list's rows lack the condition of active experiments, and rows of older releases lack
    failures of trials.
    """
    items = describe_experiments(services, [one.experiment_id for one in entries], columns)
    return [
        item
        for item in items
        if states.matches(item.state, item.condition)
        and shown.has_failed_trials in (None, item.trials.errored > 0)
        and all(is_met(item) for is_met in shown.conditions.items)
    ]


def _predicate(shown: ExperimentFilter, states: StateFilter) -> _Match:
    """Return a predicate for all conditions on listing rows. Conditions on facts and indexes are
    left out.

    The predicate may accept an experiment that does not match (`_matching_items`). Raises
    RequestError, invalid, for an unknown kind.
    """
    kinds = _parse_kinds(shown.kinds)
    failed = shown.has_failed_trials
    part = (shown.name or "").casefold()
    conditions, has_states = shown.conditions, not states.is_empty
    # A filter that names archived experiments replaces the default.
    archived = "all" if conditions.names_archived and shown.archived == "false" else shown.archived

    def is_shown(sort: str, row: ListingRow) -> bool:
        if archived != "all" and row.archived != (archived == "true"):
            return False
        if row.kind not in kinds:
            return False
        if shown.label is not None and shown.label not in row.labels:
            return False
        if has_states and not states.may_match_experiment(row.state):
            return False
        if failed is not None and row.has_failed_trials not in (None, failed):
            return False
        if shown.workspace not in (None, row.workspace):
            return False
        if shown.project not in (None, row.project) or shown.user not in (None, row.user):
            return False
        if part and part not in row.name.casefold():
            return False
        return not conditions.rows or all(is_met(sort, row) for is_met in conditions.rows)

    return is_shown


def _matching(
    entries: Sequence[ListEntry], facts: Sequence[Facts], conditions: Conditions
) -> list[tuple[ListEntry, Facts]]:
    """Return the experiments with facts that meet all conditions on facts, in order.

    `facts` may be shorter than `entries`; the other entries are left out.
    """
    pairs = zip(entries, facts, strict=False)
    if not conditions.facts:
        return list(pairs)
    return [pair for pair in pairs if all(is_met(pair[1]) for is_met in conditions.facts)]


def _read_page(
    services: Services,
    shown: ExperimentFilter,
    is_shown: _Match,
    page: PageRequest,
    descending: bool,
) -> tuple[list[ListEntry], str | None]:
    """Read a page in the order of ids.

    Returns:
        The matching experiments, and the cursor of the next page, or None on the last page. Reading
        stops after `_read_max` rows, so that a page with a cursor may be short or empty.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """
    name, start = _start_of_page(shown, page, descending)
    # If every experiment matches, a single query reads the page and the row after the page.
    candidates = _read_candidates(services, shown, start, descending, page.limit + 1)
    entries: list[ListEntry] = []
    rows_max = _read_max(services, shown)
    for rows_read, (sort, entry) in enumerate(candidates, 1):
        if entry is not None and is_shown(sort, entry.row):
            entries.append(entry)
        if len(entries) == page.limit or rows_read == rows_max:
            is_end = next(candidates, None) is None
            return entries, None if is_end else encode_cursor(name, (sort,))
    return entries, None


def _read_page_by_facts(
    services: Services,
    shown: ExperimentFilter,
    is_shown: _Match,
    page: PageRequest,
    descending: bool,
) -> tuple[list[ListEntry], str | None]:
    """Read a page in the order of ids for a filter with conditions on facts.

    Return the same as `_read_page`. A page may also end early because the facts of its next
    experiment would exceed the limit of `read_facts`.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """
    name, start = _start_of_page(shown, page, descending)
    candidates = _read_candidates(services, shown, start, descending, _PAGE_ROWS)
    entries: list[ListEntry] = []
    end: str | None = None
    rows_max = _read_max(services, shown)
    for rows_read, (sort, entry) in enumerate(candidates, 1):
        if entry is not None and is_shown(sort, entry.row):
            entries.append(entry)
        if rows_read == rows_max:
            end = None if next(candidates, None) is None else sort
            break
    facts = read_facts(services, entries, shown.conditions.needs)
    if len(facts) < len(entries):
        end = entries[len(facts) - 1].sort
    matching = [entry for entry, _ in _matching(entries, facts, shown.conditions)]
    if len(matching) > page.limit:
        end = matching[page.limit - 1].sort
    return matching[: page.limit], None if end is None else encode_cursor(name, (end,))


def _start_of_page(
    shown: ExperimentFilter, page: PageRequest, descending: bool
) -> tuple[str, str | None]:
    """Return the name of the list in cursors, and the sort key after which the page starts.

    The sort key is None for the first page.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """
    partition = _partition(shown)
    name = partition if descending else f"{partition} asc"
    after = page.start_after(name, (str,))
    return name, None if after is None else str(after[0])


def _read_newest(
    services: Services, shown: ExperimentFilter, is_shown: _Match
) -> tuple[list[ListEntry], int | None]:
    """Read the newest experiments, at most `_read_max` rows.

    Returns:
        The matching experiments, newest first, and the id below which no experiment was read. The
        id is None if all experiments were read.
    """
    entries: list[ListEntry] = []
    candidates = _read_candidates(services, shown, None, True, _PAGE_ROWS)
    rows_max = _read_max(services, shown)
    for rows_read, (sort, entry) in enumerate(candidates, 1):
        if entry is not None and is_shown(sort, entry.row):
            entries.append(entry)
        if rows_read == rows_max:
            return entries, None if next(candidates, None) is None else int(sort)
    return entries, None


def _partition(shown: ExperimentFilter) -> str:
    """Return the partition to read: the first index, or the list if the filter has no index."""
    return next(iter(shown.indexes), LISTING)


def _read_max(services: Services, shown: ExperimentFilter) -> int:
    """Return the most experiments that a request with this filter reads."""
    limits = services.limits
    return limits.looked_up_experiments_max if shown.indexes else limits.listed_experiments_max


def _read_candidates(
    services: Services,
    shown: ExperimentFilter,
    after: str | None,
    descending: bool,
    rows_first: int,
) -> Iterator[tuple[str, ListEntry | None]]:
    """Yield the sort key and the entry of each experiment after the sort key `after`.

    The entry is None if the experiment lacks a row in one of the filter's indexes or is not in the
    list. The filter's other conditions are not tested. Rows are read during the iteration. The
    first query reads `rows_first` rows; each later query reads twice as many, up to a limit.

    Args:
        services: the services that read the list.
        shown: the filter, of which only the indexes count.
        after: the sort key of the last row of the previous page; None for the beginning.
        descending: the newest experiment first.
        rows_first: the rows of the first query.
    """
    first, last = _FIRST, _LAST
    if after is not None:
        first, last = (first, after) if descending else (f"{after} ", last)
    partition, indexes, table = _partition(shown), shown.indexes, services.table
    decoded = services.cache_of(DecodedListings)
    size_max = GET_MAX if indexes else _PAGE_ROWS
    size = min(rows_first, size_max)
    while True:
        page = table.query(partition, first, last, limit=size, descending=descending)
        if indexes:
            yield from _look_up(table, indexes[1:], [row.key.sort for row in page.rows])
        else:
            for row, listed in zip(
                page.rows, decoded.decode([row.body for row in page.rows]), strict=True
            ):
                yield row.key.sort, ListEntry(row.key.sort, row.revision, listed)
        if page.next_sort is None:
            return
        first, last = (first, page.next_sort) if descending else (page.next_sort, last)
        size = min(2 * size, size_max)


def _look_up(
    table: StateTable, indexes: Sequence[str], sorts: Sequence[str]
) -> Iterator[tuple[str, ListEntry | None]]:
    """Yield each of the sort keys, at most GET_MAX, with the experiment's entry.

    The entry is None if the experiment lacks a row in one of the indexes or is not in the list.
    Yield nothing, without a read, for no sort keys.

    Args:
        table: the state table.
        indexes: the partitions in which the experiments must have a row.
        sorts: the sort keys of rows, which are ids of experiments.
    """
    if not sorts:
        return
    unmatched: set[str] = set()
    for index in indexes:
        index_rows = table.get_many([Key(index, sort) for sort in sorts])
        unmatched |= {sort for sort, row in zip(sorts, index_rows, strict=True) if row is None}
    rows = [row for row in table.get_many([Key(LISTING, sort) for sort in sorts]) if row]
    decoded = decode_listings(row.body for row in rows)
    listed = {
        row.key.sort: ListEntry(row.key.sort, row.revision, one)
        for row, one in zip(rows, decoded, strict=True)
    }
    for sort in sorts:
        yield sort, None if sort in unmatched else listed.get(sort)


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
