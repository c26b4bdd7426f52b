"""Facts of listed experiments that the listing rows do not decide alone: figures, metrics and
hyperparameters.

Rows have the facts of ended experiments. The state of a running experiment has its figures and
metrics. The state and the definition of an experiment of an older release have its metrics and
hyperparameters. A request reads a limited number of states and definitions.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final, Generic, Literal, NamedTuple, TypeVar

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

Decoded = TypeVar("Decoded")

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


class _DecodedRows(Generic[Decoded]):
    """A cache of decoded rows, by body. Safe to share between threads.

    Few rows change between two requests, and decoding takes longer than reading.
    """

    def __init__(self, decode_all: Callable[[Iterable[bytes]], list[Decoded]]) -> None:
        self._lock = Lock()
        self._decode_all = decode_all
        self._cached: dict[bytes, Decoded] = {}

    def decode(self, bodies: Sequence[bytes]) -> list[Decoded]:
        """Decode the bodies of rows, in order. Raises the errors of the decoder."""
        cached = self._cached
        unknown = [body for body in dict.fromkeys(bodies) if body not in cached]
        if unknown:
            decoded = dict(zip(unknown, self._decode_all(unknown), strict=True))
            if len(cached) + len(decoded) > _CACHED_MAX:
                cached = {body: cached[body] for body in bodies if body in cached}
            cached = {**cached, **decoded}
            with self._lock:
                self._cached = cached
        return [cached[body] for body in bodies]


class DecodedValues(_DecodedRows[ExperimentValues]):
    """The cache of decoded values rows."""

    def __init__(self) -> None:
        super().__init__(decode_values)


class DecodedListings(_DecodedRows[ListingRow]):
    """The cache of decoded listing rows."""

    def __init__(self) -> None:
        super().__init__(decode_listings)


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
    rows = _read_values(services, entries) if {"metrics", "hparams"} & set(needs) else None
    open_places = [place for place, entry in enumerate(entries) if _is_open(entry, rows, needs)]
    limit = services.limits.looked_up_experiments_max
    count = len(entries) if len(open_places) <= limit else open_places[limit]
    facts = [_facts_of_rows(entry, rows or {}) for entry in entries[:count]]
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
    decoded = services.cache_of(DecodedValues).decode([row.body for row in rows])
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
