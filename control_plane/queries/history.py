"""Queries of the history of an experiment and of its trials, and replays of journals.

A page of the history merges journals by time. It continues each journal where the previous page
stopped, and reads a few rows at a time. A page therefore reads a bounded number of rows, even of
long journals.
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
from control_plane.queries.sentences.context import SentenceContext
from control_plane.queries.sentences.registry import sentence
from control_plane.services import Services
from control_plane.state.table import Row

# The rows of each merged journal that a query reads.
STRETCH_ROWS = 8
# The most journal entries that a page reads, shown or not.
SCANNED_MAX = 2_000
# A page of replays ends after this many replayed entries.
REPLAYED_MAX = 2_000
# The most entries of an actor's journal that are replayed.
REPLAYED_OF_ONE_MAX = 20_000

# Messages that a merged history leaves out. Some repeat an entry of the trial's own journal; the
# experiment sends the rest to every trial.
ECHOES = (
    to_experiment.TrialValidationReported,
    to_experiment.TrialProgressReported,
    to_experiment.TrialMetricsDiscarded,
    to_experiment.TrialLengthReached,
    to_trial.ExperimentStatusChanged,
    to_trial.TrialMoved,
)


class Event(Answer):
    """A message that an actor processed.

    `actor` is the actor's address, such as `trial#7`. `revision` numbers the commit in the actor's
    journal. `reasons` explain the message's effects.
    """

    time_ms: int
    actor: str
    revision: int
    text: str
    reasons: list[str]


class Difference(Answer):
    """The first field that differs between a recorded commit and the replayed commit.

    `recorded` is the journal's value. `replayed` is the value that the current code computes.
    """

    revision: int
    message: str
    field: str
    recorded: Any
    replayed: Any


class Replay(Answer):
    """The result of replaying an actor's journal.

    `entries` is the number of replayed entries. `complete` is false if the journal has more entries
    than a request replays. `difference` is null if the replay equals the record.
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
    """Return a page of the experiment's history, oldest event first. A page reads a limited number
    of rows.

    A page with a cursor may be short or empty. A journal entry that cannot be decoded is an event
    with a text about that.

    Args:
        services: the services that read the journals.
        experiment_id: the experiment.
        actor: an address such as `trial#7`: list the events of this actor only. None: list the
            experiment's events, with or without those of its trials.
        merged: whether the trials' events are merged with the experiment's. None merges if the
            experiment has at most `merged_trials_max` trials. Ignored with an `actor`.
        page: the request.
        descending: list the newest event first.

    Raises:
        RequestError: not_found, if the experiment or trial does not exist; invalid, if `actor` is
            not an actor of the experiment, if `merged` is true for too many trials, or for a cursor
            of another list.
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
    """Replay the journals of an experiment and the trials, and return a page of results.

    A replay computes every commit of a journal again and compares the result with the record.
    Nothing is written. The experiment comes first, then its trials by number. A page ends early
    when it has replayed REPLAYED_MAX entries.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, for a cursor of another
            list.
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
    """The position in a journal at which reading continues."""

    revision: int = 0
    """The revision of the last entry that was read completely; 0 at the start."""
    offset: int = 0
    """The number of messages of the next entry that were already read."""

    def __str__(self) -> str:
        """Return the position as text of a cursor: `REVISION.OFFSET`, or `REVISION`."""
        return f"{self.revision}.{self.offset}" if self.offset else f"{self.revision}"


class _JournalStream:
    """An actor's journal, read entry by entry from a position.

    With `descending`, entries are read from the newest to the oldest. `position` shows which
    entries and messages were read.
    """

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
        """Return the row of the next entry without moving the position. Return None at the end.

        Query the next rows if no row is buffered. Raises TableError if the query fails.
        """
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
        """Move the position behind the next entry. `row` is the row of that entry, which `peek`
        returned.
        """
        self._rows.popleft()
        self.position = _JournalPosition(journal.entry_revision(row))

    def advance_message(self, count: int) -> None:
        """Move the position behind the first `count` messages of the next entry."""
        self.position = replace(self.position, offset=count)


DescribeEntry = Callable[[str, RecordedEntry], list[tuple[Event, bool]]]
"""Returns the events of an actor's journal entry, given the actor's address.

Each event comes with a flag that is true if a merged history leaves the event out.
"""


def _merge(
    streams: Sequence[_JournalStream], describe: DescribeEntry, limit: int, without_echoes: bool
) -> list[Event]:
    """Merge up to `limit` events of the streams by time, and advance the streams.

    Stop early after SCANNED_MAX entries, and at the end of all streams. The streams' positions are
    behind the last returned event.

    Args:
        streams: the journals, the experiment's first.
        describe: returns the events of an entry.
        limit: the most events.
        without_echoes: leave out the events that `describe` flags.
    """
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
    """Yield the stream's next entry with the sort key of the merge. Yield nothing at the end.

    The yielded tuple has three values of the sort key, the stream's index, the row and the entry.
    An entry that cannot be decoded has the time 0.

    Entries of the same time are sorted so that a cause comes before its effect. Users' commands
    come first, then entries of trials, then entries of the experiment. A descending history has the
    reverse order.

    Args:
        place: the index of the stream; 0 is the experiment's.
        stream: the stream.
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
    """Return a function that converts the experiment's journal entries to events.

    The function reads the experiment's definition at the first call, and the ids of trials when a
    sentence names a trial. The definition and the ids are cached. An entry has an event for each
    message, in order. The flag of an event is true for messages of ECHOES without reasons. The
    function raises RequestError not_found if the experiment was deleted meanwhile.
    """

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
            # A fold ends with a step without a message. The reasons of this step are added to the
            # last message.
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
    """Return the text of a message's event, and whether a merged history leaves the event out.

    A message that this release cannot decode has a text that names the message, and is not left
    out.

    Args:
        named: the stored name and fields of the message.
        is_dead: whether the message could not be processed, which the text says.
        context: the actor and the names for the sentence.
    """
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
    """Return the addresses of the journals that `list_history` reads, the experiment's first.

    Args:
        services: the services that read the ids of the trials.
        state: the experiment.
        actor: return only the address of this actor, and ignore `merged`. None for no limit.
        merged: True adds all trials, False adds no trial. None adds all trials if the experiment
            has at most `merged_trials_max`.

    Raises:
        RequestError: invalid, if `actor` is not an actor of the experiment, or if `merged` is True
            for more than `merged_trials_max` trials; not_found, if the experiment lacks the trial.
    """
    own = addresses.experiment(state.experiment_id)
    if actor is not None:
        return [own if actor == own else _trial_address(services, state, actor)]
    merged_max = services.limits.merged_trials_max
    too_many = state.trials > merged_max
    if merged and too_many:
        text = f"experiment {state.experiment_id} has {state.trials} trials"
        hint = f"up to {merged_max} are merged; select one with actor=trial#7"
        raise invalid("trials", text, hint)
    if merged is False or too_many:
        return [own]
    return [own, *map(addresses.trial, experiments.trial_ids(services, state, 0, state.trials))]


def _trial_address(services: Services, state: ExperimentState, actor: str) -> str:
    """Return the address of a trial of the experiment, given as `trial#7`.

    Raises:
        RequestError: invalid, for another text; not_found, if the experiment has no such trial or
            the trial was deleted.
    """
    kind, _, name = actor.partition("#")
    if kind != "trial" or not (name.isascii() and name.isdigit()) or len(name) > 12:
        hint = f"name experiment#{state.experiment_id} or one of its trials as trial#7"
        raise invalid("actor", f"{actor!r:.40} has no history in this experiment", hint)
    if trials.get_trial(services, int(name)).experiment_id != state.experiment_id:
        text = f"trial {int(name)} is not one of experiment {state.experiment_id}"
        raise RequestError(Code.NOT_FOUND, text)
    return addresses.trial(int(name))


def _parse_positions(page: PageRequest, list_name: str, count: int) -> list[_JournalPosition]:
    """Parse the cursor; return the position in each of `count` journals.

    Journals of trials that were created after the previous page start at their beginning. If the
    experiment has got too many trials to merge, only its own position is used.

    Raises:
        RequestError: invalid, if the cursor does not belong to this list.
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
    """Return the address of the experiment's trial with this number, or of the experiment for -1.

    Empty if the trial does not exist.
    """
    if number < 0:
        return [addresses.experiment(state.experiment_id)]
    return [addresses.trial(i) for i in experiments.trial_ids(services, state, number, number + 1)]


def _replay_actor(services: Services, address: str) -> Replay:
    """Replay the first REPLAYED_OF_ONE_MAX entries of an actor's journal, and return the result.

    Nothing is written. A difference, or an entry that cannot be decoded, is part of the result.
    """
    replayed = replay.replay_actor(services.table, address, entries_max=REPLAYED_OF_ONE_MAX)
    difference = None
    if replayed.difference is not None:
        difference = Difference(
            revision=replayed.difference.revision,
            message=replayed.difference.message,
            field=replayed.difference.field,
            recorded=replayed.difference.recorded,
            replayed=replayed.difference.replayed,
        )
    return Replay(
        actor=address, entries=replayed.entries, complete=replayed.complete, difference=difference
    )
