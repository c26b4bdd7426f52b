"""What happened to an experiment and its trials, told from their journals, and their replay.

A page merges the journals it is asked for by time. Each is read from where the page before left
it, in small stretches, so that a page reads a bounded number of rows however long they are.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from control_plane.actors import addresses
from control_plane.actors import experiment_messages as to_experiment
from control_plane.actors import trial_messages as to_trial
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.experiment_summaries import SUMMARIES_PER_PART
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.pages import Page, PageAsked, write_cursor
from control_plane.api.services import Services
from control_plane.api.views import experiment as experiments
from control_plane.api.views import trial as trials
from control_plane.api.views.sentences import Told, sentence
from control_plane.dispatch import journal, replay
from control_plane.dispatch.journal import JOURNAL_END, Named, Recorded
from control_plane.dispatch.kinds import kind_at
from control_plane.state.table import Row

# Trials whose entries are merged into their experiment's: a page reads a stretch of each.
MERGED_TRIALS_MAX = 100
STRETCH_ROWS = 8
# Entries that one page looks at, shown or not.
SCANNED_MAX = 2_000
# Entries after which a page of replays ends, and an actor's replay is cut off.
REPLAYED_MAX = 2_000
REPLAYED_OF_ONE_MAX = 20_000

# What a trial's own entries say too, or what every trial hears of its experiment's.
ECHOES = (
    to_experiment.TrialValidated,
    to_experiment.TrialLengthReached,
    to_trial.ExperimentStatusChanged,
    to_trial.TrialMoved,
)


class Event(Body):
    """One message and why it had the effect it had; `revision` is the commit's."""

    time_ms: int
    actor: str
    revision: int
    text: str
    reasons: list[str]


class Difference(Body):
    """See docs/api.md: where today's code leaves the record."""

    revision: int
    message: str
    field: str
    recorded: Any
    replayed: Any


class Replay(Body):
    """`complete` is false where the journal is longer than a request replays: `entries` were."""

    actor: str
    entries: int
    complete: bool
    difference: Difference | None


def history(
    services: Services, experiment_id: int, actor: str | None, merged: bool | None, asked: PageAsked
) -> Page[Event]:
    """Oldest first. With an actor its entries alone; without one those of the experiment, merged
    with its trials' if `merged`, or if that is None and there are at most MERGED_TRIALS_MAX.

    Raises:
        ApiError: not_found; invalid, for an actor that is none of the experiment's, and for more
            trials than are merged.
    """
    state, _ = experiments.found(services, experiment_id)
    named = _actors(services, state, actor, merged)
    list_name = f"history {actor or experiment_id}"
    places = _places(asked, list_name, len(named))
    streams = [
        _Stream(services, address, place, asked.limit if len(named) == 1 else STRETCH_ROWS)
        for address, place in zip(named, places, strict=True)
    ]
    told = _teller(services, state)
    events = _page(streams, told, asked.limit, without_echoes=len(named) > 1)
    more = any(stream.peek() is not None for stream in streams)
    position = ",".join(str(stream.place) for stream in streams)
    cursor = write_cursor(list_name, (position,)) if more else None
    return Page(items=events, next_cursor=cursor)


def replays(services: Services, experiment_id: int, asked: PageAsked) -> Page[Replay]:
    """The experiment first, then its trials by number; ApiError not_found."""
    state, _ = experiments.found(services, experiment_id)
    after = asked.after("replay", (int,))
    # Number -1 is the experiment itself.
    number = -1 if after is None else int(after[0])
    items: list[Replay] = []
    entries = 0
    while number < state.trials and len(items) < asked.limit and entries < REPLAYED_MAX:
        for address in _numbered(services, state, number):
            items.append(_replayed(services, address))
            entries += items[-1].entries
        number += 1
    cursor = write_cursor("replay", (number,)) if number < state.trials else None
    return Page(items=items, next_cursor=cursor)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where reading goes on: behind entry `revision`, of which `offset` messages of the next one
    are told already.
    """

    revision: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.revision}.{self.offset}" if self.offset else f"{self.revision}"


class _Stream:
    """An actor's journal from a place on."""

    def __init__(self, services: Services, address: str, place: _Place, stretch: int) -> None:
        self.address = address
        self.place = place
        self._table = services.table
        self._stretch = stretch
        self._rows: deque[Row] = deque()
        self._next: str | None = f"{journal.JOURNAL}{place.revision + 1:012d}"

    def peek(self) -> Row | None:
        """The next entry, None at the end."""
        if not self._rows and self._next is not None:
            page = self._table.query(self.address, self._next, JOURNAL_END, limit=self._stretch)
            self._rows.extend(page.rows)
            self._next = page.next_sort
        return self._rows[0] if self._rows else None

    def passed(self, row: Row) -> None:
        """The entry is told to its end."""
        self._rows.popleft()
        self.place = _Place(journal.revision_of(row))

    def told(self, count: int) -> None:
        """That many messages of the next entry are told."""
        self.place = replace(self.place, offset=count)


Teller = Callable[[str, Recorded], list[tuple[Event, bool]]]
"""The events of an entry, each with whether it is an echo."""


def _page(
    streams: Sequence[_Stream], teller: Teller, limit: int, without_echoes: bool
) -> list[Event]:
    """Up to `limit` events in the order of time; the streams end up behind them."""
    events: list[Event] = []
    waiting = [item for place, stream in enumerate(streams) for item in _dated(place, stream)]
    heapq.heapify(waiting)
    for _ in range(SCANNED_MAX):
        if not waiting:
            break
        *_, place, row, entry = heapq.heappop(waiting)
        stream = streams[place]
        listed = list(enumerate(teller(stream.address, entry), 1))[stream.place.offset :]
        for count, (event, is_echo) in listed:
            if len(events) == limit:
                return events
            if not (without_echoes and is_echo):
                events.append(event)
            stream.told(count)
        stream.passed(row)
        for item in _dated(place, stream):
            heapq.heappush(waiting, item)
    return events


def _dated(place: int, stream: _Stream) -> Iterator[tuple[int, int, int, Row, Recorded]]:
    """The stream's next entry with its time; one that cannot be read has the time 0.

    At one time, what is commanded comes before what trials say, and that before its effect on the
    experiment, whose stream is the first.
    """
    row = stream.peek()
    if row is not None:
        try:
            entry = journal.read_entry(row)
        except ValueError:
            revision = journal.revision_of(row)
            entry = Recorded(revision, 0, (), (("", {}),), {}, {})
        rank = 0 if entry.command else 1 if place else 2
        yield entry.now_ms, rank, place, row, entry


def _teller(services: Services, state: ExperimentState) -> Teller:
    @cache
    def stretch(index: int) -> list[int]:
        first = index * SUMMARIES_PER_PART
        return list(experiments.trial_ids(services, state, first, first + SUMMARIES_PER_PART))

    def trial_id(number: int) -> int | None:
        index, place = divmod(number, SUMMARIES_PER_PART)
        known = stretch(index)
        return known[place] if place < len(known) else None

    @cache
    def unit() -> str:
        _, definition = experiments.found(services, state.experiment_id)
        return definition.settings.lengths.unit

    def tell(address: str, entry: Recorded) -> list[tuple[Event, bool]]:
        said: list[tuple[Event, bool]] = []
        last = len(entry.messages) - 1
        for place, named in enumerate(entry.messages):
            by = entry.by if place > last - len(entry.command) else ""
            told = Told(address, by, state.metric, unit(), trial_id)
            # The end of a fold has a turn of its own: its reasons go to the last message.
            reasons = [why for turn, why in entry.why if min(turn, last) == place]
            text, is_echo = _text(named, entry.dead, told)
            event = Event(
                time_ms=entry.now_ms,
                actor=address,
                revision=entry.revision,
                text=text,
                reasons=reasons,
            )
            said.append((event, is_echo and not reasons))
        return said

    return tell


def _text(named: Named, is_dead: bool, told: Told) -> tuple[str, bool]:
    name, fields = named
    if not name:
        return "an entry of the journal that cannot be read", False
    try:
        message = kind_at(told.address).decode_message(name, fields)
    except (KeyError, ValueError):
        return f"{name}, which is no message of this version", False
    text = sentence(message, told)
    if is_dead:
        text += " (this could not be processed)"
    return text, isinstance(message, ECHOES) and not is_dead


def _actors(
    services: Services, state: ExperimentState, actor: str | None, merged: bool | None
) -> list[str]:
    """The addresses whose journals are asked for, the experiment's first."""
    own = addresses.experiment(state.experiment_id)
    if actor not in (None, own):
        return [_trial_of(services, state, str(actor))]
    too_many = state.trials > MERGED_TRIALS_MAX
    if merged and too_many:
        text = f"experiment {state.experiment_id} has {state.trials} trials"
        hint = f"up to {MERGED_TRIALS_MAX} are merged; name one with actor=trial#7"
        raise invalid("trials", text, hint)
    if actor is not None or merged is False or too_many:
        return [own]
    return [own, *map(addresses.trial, experiments.trial_ids(services, state, 0, state.trials))]


def _trial_of(services: Services, state: ExperimentState, actor: str) -> str:
    kind, _, name = actor.partition("#")
    if kind != "trial" or not (name.isascii() and name.isdigit()) or len(name) > 12:
        hint = f"name experiment#{state.experiment_id} or one of its trials as trial#7"
        raise invalid("actor", f"{actor!r:.40} has no history here", hint)
    if trials.found(services, int(name)).experiment_id != state.experiment_id:
        text = f"trial {int(name)} is not one of experiment {state.experiment_id}"
        raise ApiError(Code.NOT_FOUND, text)
    return addresses.trial(int(name))


def _places(asked: PageAsked, list_name: str, count: int) -> list[_Place]:
    """Where each journal is read on. Trials that came since begin at their beginning; once there
    are too many to be merged, only the experiment's own place counts.
    """
    after = asked.after(list_name, (str,))
    texts = str(after[0]).split(",") if after else []
    try:
        places = [_Place(*map(int, text.split("."))) for text in texts]
    except (TypeError, ValueError):
        refusal = invalid("cursor", "is none that this list gave", "start again without a cursor")
        raise refusal from None
    return (places + [_Place()] * count)[:count]


def _numbered(services: Services, state: ExperimentState, number: int) -> list[str]:
    if number < 0:
        return [addresses.experiment(state.experiment_id)]
    return [addresses.trial(i) for i in experiments.trial_ids(services, state, number, number + 1)]


def _replayed(services: Services, address: str) -> Replay:
    found = replay.replay(services.table, address, entries_max=REPLAYED_OF_ONE_MAX)
    difference = None
    if found.difference is not None:
        differs = found.difference
        difference = Difference(
            revision=differs.revision,
            message=differs.message,
            field=differs.field,
            recorded=differs.recorded,
            replayed=differs.replayed,
        )
    return Replay(
        actor=address, entries=found.entries, complete=found.complete, difference=difference
    )
