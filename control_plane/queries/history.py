"""The history of an experiment and its trials, read from their journals, and their replay.

A page merges journals by time. Each is read from where the page before stopped, in small stretches,
so that a page reads a bounded number of rows however long the journals are.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.trial_summaries import SUMMARIES_PER_PART
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages import experiment as to_experiment
from control_plane.actors.messages import trial as to_trial
from control_plane.engine import journal, replay
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.journal import JOURNAL_END, NamedMessage, RecordedEntry
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import experiment as experiments
from control_plane.queries import trial as trials
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.sentences import SentenceContext, sentence
from control_plane.services import Services
from control_plane.state.table import Row

# Trials whose entries are merged into their experiment's: a page reads a stretch of each.
MERGED_TRIALS_MAX = 100
STRETCH_ROWS = 8
# Entries that one page reads, shown or not.
SCANNED_MAX = 2_000
# Entries after which a page of replays ends, and an actor's replay is cut off.
REPLAYED_MAX = 2_000
REPLAYED_OF_ONE_MAX = 20_000

# Messages that repeat a trial's own entries, or that every trial gets from its experiment.
ECHOES = (
    to_experiment.TrialValidationReported,
    to_experiment.TrialProgressReported,
    to_experiment.TrialLengthReached,
    to_trial.ExperimentStatusChanged,
    to_trial.TrialMoved,
)


class Event(Answer):
    """One message and why it had the effect it had; `revision` is the commit's."""

    time_ms: int
    actor: str
    revision: int
    text: str
    reasons: list[str]


class Difference(Answer):
    """The first field of a commit where today's code gives another value than the record."""

    revision: int
    message: str
    field: str
    recorded: Any
    replayed: Any


class Replay(Answer):
    """The replay of one actor's journal. `complete` is false where the journal is longer than a
    request replays: `entries` were.
    """

    actor: str
    entries: int
    complete: bool
    difference: Difference | None


def list_history(
    services: Services,
    experiment_id: int,
    actor: str | None,
    merged: bool | None,
    page: PageRequest,
    *,
    descending: bool = False,
) -> Page[Event]:
    """List events, oldest first or `descending`: with an actor those of its entries alone; without
    one those of the experiment, merged with its trials' if `merged`, or if that is None and there
    are at most MERGED_TRIALS_MAX trials.

    Raises:
        RequestError: not_found; invalid, for an actor that is none of the experiment's, and for
            more trials than are merged.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    listed = _actor_addresses(services, state, actor, merged)
    list_name = f"history {actor or experiment_id}{' desc' if descending else ''}"
    positions = _parse_positions(page, list_name, len(listed))
    stretch = page.limit if len(listed) == 1 else STRETCH_ROWS
    streams = [
        _JournalStream(services, address, position, stretch, descending)
        for address, position in zip(listed, positions, strict=True)
    ]
    describe = _event_describer(services, state)
    events = _merge(streams, describe, page.limit, without_echoes=len(listed) > 1)
    more = any(stream.peek() is not None for stream in streams)
    positions_text = ",".join(str(stream.position) for stream in streams)
    cursor = encode_cursor(list_name, (positions_text,)) if more else None
    return Page(items=events, next_cursor=cursor)


def list_replays(services: Services, experiment_id: int, page: PageRequest) -> Page[Replay]:
    """Replay the journals of the experiment first, then of its trials by number; RequestError
    not_found.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after("replay", (int,))
    # Number -1 is the experiment itself.
    number = -1 if after is None else int(after[0])
    items: list[Replay] = []
    entries = 0
    while number < state.trials and len(items) < page.limit and entries < REPLAYED_MAX:
        for address in _numbered_addresses(services, state, number):
            items.append(_replay_actor(services, address))
            entries += items[-1].entries
        number += 1
    cursor = encode_cursor("replay", (number,)) if number < state.trials else None
    return Page(items=items, next_cursor=cursor)


@dataclass(frozen=True, slots=True)
class _JournalPosition:
    """The position where reading goes on: behind entry `revision`, 0 for the beginning, and behind
    `offset` messages of the next entry, in the order of reading.
    """

    revision: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.revision}.{self.offset}" if self.offset else f"{self.revision}"


class _JournalStream:
    """An actor's journal from a position on, forwards or, `descending`, back from its end."""

    def __init__(
        self,
        services: Services,
        address: str,
        position: _JournalPosition,
        stretch: int,
        descending: bool,
    ) -> None:
        self.address = address
        self.position = position
        self.descending = descending
        self._table = services.table
        self._stretch = stretch
        self._rows: deque[Row] = deque()
        self._next: str | None = f"{journal.JOURNAL}{position.revision + (not descending):012d}"
        if descending and not position.revision:
            self._next = JOURNAL_END

    def peek(self) -> Row | None:
        """Read the next entry without passing it; None at the end."""
        if not self._rows and self._next is not None:
            first, last = self._next, JOURNAL_END
            if self.descending:
                first, last = f"{journal.JOURNAL}{0:012d}", self._next
            page = self._table.query(
                self.address, first, last, limit=self._stretch, descending=self.descending
            )
            self._rows.extend(page.rows)
            self._next = page.next_sort
        return self._rows[0] if self._rows else None

    def advance_entry(self, row: Row) -> None:
        """Go on behind the next entry."""
        self._rows.popleft()
        self.position = _JournalPosition(journal.entry_revision(row))

    def advance_message(self, count: int) -> None:
        """Go on behind that many messages of the next entry."""
        self.position = replace(self.position, offset=count)


DescribeEntry = Callable[[str, RecordedEntry], list[tuple[Event, bool]]]
"""Makes the events of the entry of an address, each with whether it is an echo."""


def _merge(
    streams: Sequence[_JournalStream], describe: DescribeEntry, limit: int, without_echoes: bool
) -> list[Event]:
    """Merge up to `limit` events in the order of the streams; these end up behind them."""
    events: list[Event] = []
    waiting = [
        item for place, stream in enumerate(streams) for item in _entry_with_time(place, stream)
    ]
    heapq.heapify(waiting)
    for _ in range(SCANNED_MAX):
        if not waiting:
            break
        *_, place, row, entry = heapq.heappop(waiting)
        stream = streams[place]
        described = describe(stream.address, entry)[:: -1 if stream.descending else 1]
        listed = list(enumerate(described, 1))[stream.position.offset :]
        for count, (event, is_echo) in listed:
            if len(events) == limit:
                return events
            if not (without_echoes and is_echo):
                events.append(event)
            stream.advance_message(count)
        stream.advance_entry(row)
        for item in _entry_with_time(place, stream):
            heapq.heappush(waiting, item)
    return events


def _entry_with_time(
    place: int, stream: _JournalStream
) -> Iterator[tuple[int, int, int, int, Row, RecordedEntry]]:
    """The stream's next entry with its time; one that cannot be read has the time 0.

    At one time, what is commanded comes before what trials say, and that before its effect on the
    experiment, whose stream is the first; descending it is the other way round.
    """
    row = stream.peek()
    if row is not None:
        try:
            entry = journal.read_entry(row)
        except ValueError:
            revision = journal.entry_revision(row)
            entry = RecordedEntry(revision, 0, (), (("", {}),), {}, {})
        rank = 0 if entry.command else 1 if place else 2
        sign = -1 if stream.descending else 1
        yield sign * entry.now_ms, sign * rank, sign * place, place, row, entry


def _event_describer(services: Services, state: ExperimentState) -> DescribeEntry:
    @cache
    def trial_ids_of_part(index: int) -> list[int]:
        first = index * SUMMARIES_PER_PART
        return list(experiments.trial_ids(services, state, first, first + SUMMARIES_PER_PART))

    def trial_id(number: int) -> int | None:
        index, place = divmod(number, SUMMARIES_PER_PART)
        trial_ids = trial_ids_of_part(index)
        return trial_ids[place] if place < len(trial_ids) else None

    @cache
    def lengths() -> Lengths:
        _, definition = experiments.get_experiment(services, state.experiment_id)
        return definition.settings.lengths

    def describe(address: str, entry: RecordedEntry) -> list[tuple[Event, bool]]:
        events: list[tuple[Event, bool]] = []
        last = len(entry.messages) - 1
        for place, named in enumerate(entry.messages):
            by = entry.user if place > last - len(entry.command) else ""
            noun = "epoch" if lengths().counts_epochs else "batch"
            unit = lengths().unit
            context = SentenceContext(address, by, state.metric, unit, trial_id, noun)
            # The end of a fold is a step of its own: its reasons go to the last message.
            reasons = [why for step, why in entry.reasons if min(step, last) == place]
            text, is_echo = _event_text(named, entry.is_dead_letter, context)
            event = Event(
                time_ms=entry.now_ms,
                actor=address,
                revision=entry.revision,
                text=text,
                reasons=reasons,
            )
            events.append((event, is_echo and not reasons))
        return events

    return describe


def _event_text(named: NamedMessage, is_dead: bool, context: SentenceContext) -> tuple[str, bool]:
    """The text of a message's event, and whether it is an echo."""
    name, fields = named
    if not name:
        return "a journal entry that cannot be decoded", False
    try:
        message = actor_type_at(context.address).decode_message(name, fields)
    except (KeyError, ValueError):
        return f"{name}, which is not a message of this version", False
    text = sentence(message, context)
    if is_dead:
        text += " (this could not be processed)"
    return text, isinstance(message, ECHOES) and not is_dead


def _actor_addresses(
    services: Services, state: ExperimentState, actor: str | None, merged: bool | None
) -> list[str]:
    """The addresses of the journals that are asked for, the experiment's first."""
    own = addresses.experiment(state.experiment_id)
    if actor not in (None, own):
        return [_trial_address(services, state, str(actor))]
    too_many = state.trials > MERGED_TRIALS_MAX
    if merged and too_many:
        text = f"experiment {state.experiment_id} has {state.trials} trials"
        hint = f"up to {MERGED_TRIALS_MAX} are merged; select one with actor=trial#7"
        raise invalid("trials", text, hint)
    if actor is not None or merged is False or too_many:
        return [own]
    return [own, *map(addresses.trial, experiments.trial_ids(services, state, 0, state.trials))]


def _trial_address(services: Services, state: ExperimentState, actor: str) -> str:
    kind, _, name = actor.partition("#")
    if kind != "trial" or not (name.isascii() and name.isdigit()) or len(name) > 12:
        hint = f"name experiment#{state.experiment_id} or one of its trials as trial#7"
        raise invalid("actor", f"{actor!r:.40} has no history in this experiment", hint)
    if trials.get_trial(services, int(name)).experiment_id != state.experiment_id:
        text = f"trial {int(name)} is not one of experiment {state.experiment_id}"
        raise RequestError(Code.NOT_FOUND, text)
    return addresses.trial(int(name))


def _parse_positions(page: PageRequest, list_name: str, count: int) -> list[_JournalPosition]:
    """Parse the position in each journal. Trials that came since begin at their beginning; once
    there are too many to be merged, only the position in the experiment's own journal counts.
    """
    after = page.start_after(list_name, (str,))
    texts = str(after[0]).split(",") if after else []
    try:
        positions = [_JournalPosition(*map(int, text.split("."))) for text in texts]
    except (TypeError, ValueError):
        refusal = invalid(
            "cursor", "is not one that this list returned", "start again without a cursor"
        )
        raise refusal from None
    return (positions + [_JournalPosition()] * count)[:count]


def _numbered_addresses(services: Services, state: ExperimentState, number: int) -> list[str]:
    if number < 0:
        return [addresses.experiment(state.experiment_id)]
    return [addresses.trial(i) for i in experiments.trial_ids(services, state, number, number + 1)]


def _replay_actor(services: Services, address: str) -> Replay:
    replayed = replay.replay_actor(services.table, address, entries_max=REPLAYED_OF_ONE_MAX)
    difference = None
    if replayed.difference is not None:
        differs = replayed.difference
        difference = Difference(
            revision=differs.revision,
            message=differs.message,
            field=differs.field,
            recorded=differs.recorded,
            replayed=differs.replayed,
        )
    return Replay(
        actor=address, entries=replayed.entries, complete=replayed.complete, difference=difference
    )
