"""Facts of listed experiments that the listing rows do not decide alone: figures, metrics and
hyperparameters.

Rows have the facts of ended experiments. The state of a running experiment has its figures and
metrics. The state and the definition of an experiment of an older release have its metrics and
hyperparameters. A request reads a limited number of states and definitions.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final, Literal, NamedTuple

from control_plane.actors import addresses
from control_plane.actors.experiment.listing import ListingRow, decode_listings
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.experiment.values import (
    NO_VALUES,
    VALUES,
    ExperimentValues,
    decode_values,
    listed_hparams,
    listed_metrics,
)
from control_plane.actors.records import JobKind, Status
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, decode_head
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import GET_MAX, Key, Row, StateTable

Need = Literal["figures", "metrics", "hparams", "times"]
"""A kind of facts: the best metric, the progress and the cost; all metrics; hyperparameters; or
the times of submission and end, which only the states have.
"""

# From this number of experiments on, reading a range of rows costs less than reading single rows.
_RANGE_MIN: Final = 300
_CACHED_MAX: Final = 30_000


class ListEntry(NamedTuple):
    """An experiment of the list."""

    sort: str
    """The sort key of the rows, which holds the experiment's id."""
    revision: int
    """The revision of the listing row."""
    row: ListingRow

    @property
    def experiment_id(self) -> int:
        """The experiment's id."""
        return int(self.sort)

    @property
    def is_decided(self) -> bool:
        """Whether the row decides the condition of the experiment, and whether a trial has failed.

        False for an active experiment, and for a row of an older release.
        """
        return self.row.state != Status.ACTIVE and self.row.has_failed_trials is not None


class Facts(NamedTuple):
    """Facts of an experiment. Only the facts that a reader needed are complete."""

    metric: float | None = None
    """The best searcher metric, or None."""
    progress: float | None = None
    """The progress of the search, from 0 to 1, or None."""
    cost_micros: float = 0
    """The cost so far, in micro-dollars."""
    metrics: Mapping[str, float] = {}
    """The metrics of the best validation by name."""
    hparams: Mapping[str, object] = {}
    """The hyperparameters by dotted path, as in `ExperimentValues`."""
    submitted_ms: int | None = None
    ended_ms: int | None = None
    """The end, or None for an experiment that has not ended."""


class DecodedListings:
    """A cache of decoded listing rows, by body. Safe to share between threads.

    Few rows change between two requests, and decoding takes longer than reading.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._cached: dict[bytes, ListingRow] = {}

    def decode(self, bodies: Sequence[bytes]) -> list[ListingRow]:
        """Decode the bodies of rows, in order. Raises the errors of the decoder."""
        cached = self._cached
        unknown = [body for body in dict.fromkeys(bodies) if body not in cached]
        if unknown:
            decoded = dict(zip(unknown, decode_listings(unknown), strict=True))
            if len(cached) + len(decoded) > _CACHED_MAX:
                cached = {body: cached[body] for body in bodies if body in cached}
            cached = {**cached, **decoded}
            with self._lock:
                self._cached = cached
        return [cached[body] for body in bodies]


class FactsOfRows:
    """A cache of the facts of experiments whose rows have all facts. Safe to share between threads.

    A values row changes only in a commit that also changes the listing row. So facts are those of
    a revision of the listing row.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._cached: dict[str, tuple[int, Facts]] = {}

    def find(self, entries: Sequence[ListEntry]) -> list[Facts | None]:
        """Return the facts of experiments, in order. None for unknown facts."""
        cached, unknown = self._cached, (0, None)
        found = (cached.get(entry.sort, unknown) for entry in entries)
        return [
            facts if revision == entry.revision else None
            for entry, (revision, facts) in zip(entries, found, strict=True)
        ]

    def add(self, facts: Iterable[tuple[ListEntry, Facts]]) -> None:
        """Store facts of experiments. Above _CACHED_MAX, drop all others."""
        new = {entry.sort: (entry.revision, one) for entry, one in facts}
        if not new:
            return
        with self._lock:
            former = self._cached if len(self._cached) + len(new) <= _CACHED_MAX else {}
            self._cached = {**former, **new}


def read_facts(
    services: Services, entries: Sequence[ListEntry], needs: Collection[Need]
) -> list[Facts]:
    """Read facts of experiments, in order, up to the limit of a request.

    The list is shorter than `entries` if more than `looked_up_experiments_max` experiments must be
    looked up in their states or definitions.

    Args:
        services: the services that read the rows.
        entries: the experiments, in ascending or descending order of ids.
        needs: the kinds of facts that must be complete.
    """
    reads_values = bool({"metrics", "hparams"} & set(needs))
    cache = services.cache_of(FactsOfRows)
    known = cache.find(entries) if reads_values and "times" not in needs else [None] * len(entries)
    unknown = [entry for entry, found in zip(entries, known, strict=True) if found is None]
    rows = _read_values(services, unknown) if reads_values else None
    facts = [
        _facts_of_rows(entry, rows or {}) if found is None else found
        for entry, found in zip(entries, known, strict=True)
    ]
    open_places = [
        place
        for place, (entry, found) in enumerate(zip(entries, known, strict=True))
        if found is None and _is_open(entry, rows, needs)
    ]
    if rows is not None:
        pairs = zip(entries, facts, known, strict=True)
        cache.add((one, found) for one, found, old in pairs if old is None and _is_full(one, rows))
    limit = services.limits.looked_up_experiments_max
    if len(open_places) > limit:
        del facts[open_places[limit] :]
    looked_up = open_places[:limit]
    ids = [entries[place].experiment_id for place in looked_up]
    now_ms = services.now_ms()
    for place, state in zip(looked_up, read_states(services.table, ids), strict=True):
        facts[place] = _facts_of_state(facts[place], state, now_ms)
    if rows is not None and "hparams" in needs:
        _add_old_hparams(services, entries, rows, looked_up, facts)
    return facts


def _is_open(
    entry: ListEntry, rows: Mapping[str, ExperimentValues] | None, needs: Collection[Need]
) -> bool:
    """Return whether rows lack a needed fact of an experiment. The reader then reads the state.

    Args:
        entry: the experiment.
        rows: the values rows by sort key. None if no values row was read.
        needs: the needed kinds of facts.
    """
    if "times" in needs:
        return True
    if entry.row.figures is None and ("figures" in needs or "metrics" in needs):
        return True
    if rows is None or entry.row.kind is not JobKind.EXPERIMENT:
        return False
    return entry.sort not in rows


def _is_full(entry: ListEntry, rows: Mapping[str, ExperimentValues]) -> bool:
    """Return whether rows have all facts of an experiment but the times. Commands have no values
    row.
    """
    has_values = entry.sort in rows or entry.row.kind is not JobKind.EXPERIMENT
    return has_values and entry.row.figures is not None


def _facts_of_rows(entry: ListEntry, rows: Mapping[str, ExperimentValues]) -> Facts:
    """Return the facts that rows have."""
    values = rows.get(entry.sort, NO_VALUES)
    figures = entry.row.figures
    if figures is None:
        return Facts(hparams=values.hparams)
    return Facts(
        _number_or_none(figures.metric),
        _number_or_none(figures.progress),
        figures.cost_micros,
        values.metrics,
        values.hparams,
    )


def _facts_of_state(facts: Facts, state: ExperimentState | None, now_ms: int) -> Facts:
    """Return facts with the figures and metrics of a state. Without a state, return `facts`.

    Args:
        facts: the facts that rows have.
        state: the state of the experiment. None without the experiment.
        now_ms: the present time in epoch ms, up to which running trials cost money.
    """
    if state is None:
        return facts
    return Facts(
        _number_or_none(state.best_metric),
        _number_or_none(state.progress),
        state.bill.spent_micros(now_ms),
        listed_metrics(state),
        facts.hparams,
        state.created_ms,
        state.ended_ms,
    )


def _add_old_hparams(
    services: Services,
    entries: Sequence[ListEntry],
    rows: Mapping[str, ExperimentValues],
    looked_up: Sequence[int],
    facts: list[Facts],
) -> None:
    """Add the hyperparameters of experiments without a values row to `facts`.

    Args:
        services: the services that read the definitions.
        entries: the experiments.
        rows: the values rows by sort key.
        looked_up: the places in `entries` of experiments that may lack a values row.
        facts: the facts of the experiments, which are replaced.
    """
    places = [place for place in looked_up if entries[place].sort not in rows]
    parts = [(addresses.experiment(entries[n].experiment_id), "definition") for n in places]
    for place, part in zip(places, services.engine.read_parts(parts) if parts else (), strict=True):
        if isinstance(part, Definition):
            facts[place] = facts[place]._replace(hparams=listed_hparams(part))


def _read_values(services: Services, entries: Sequence[ListEntry]) -> dict[str, ExperimentValues]:
    """Read the values rows of experiments, by sort key. Missing rows are left out."""
    table, rows = services.table, list[Row]()
    if len(entries) < _RANGE_MIN:
        keys = [Key(VALUES, entry.sort) for entry in entries]
        for start in range(0, len(keys), GET_MAX):
            found = table.get_many(keys[start : start + GET_MAX])
            rows += [row for row in found if row is not None]
    else:
        first, last = sorted((entries[0].sort, entries[-1].sort))
        rows += read_rows(table, VALUES, first, f"{last} ")
    decoded = decode_values(row.body for row in rows)
    return {row.key.sort: values for row, values in zip(rows, decoded, strict=True)}


def _number_or_none(number: float | None) -> float | None:
    """Return the number. Return None for NaN, because NaN has no place in an order."""
    return None if number is None or math.isnan(number) else number


def read_states(table: StateTable, ids: Sequence[int]) -> Iterator[ExperimentState | None]:
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
