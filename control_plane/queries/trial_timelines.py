"""Query of the timelines of an experiment's trials: runs, machines and waits.

Timelines are computed from the trials' journals. A page reads a bounded number of journal entries.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    SlotsAssigned,
    TrialContinued,
    TrialCreated,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.state import AllocationState, TrialState
from control_plane.engine import journal
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.journal import RecordedEntry
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services

# The most trials of a page.
TRIALS_MAX = 100
# The most journal entries that are read of a trial. Later runs of the trial are left out.
ENTRIES_OF_TRIAL_MAX = 2_000
# A page ends after the trial that reaches this number of journal entries.
SCANNED_MAX = 1_000
LOST = "lost"

SHOWN = (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    SlotsAssigned,
    TrialContinued,
    TrialCreated,
    WorkAssigned,
)
"""The messages to a trial that decide the timeline."""


class WaitKind(StrEnum):
    """The reason why a trial holds no slots."""

    SLOTS = "slots"
    """The trial waits for slots, or for a restart after a failure."""
    SEARCH = "search"
    """The trial has reached its length, and the search has not decided on more."""
    PAUSED = "paused"
    """The experiment is not active."""


class RunPlace(Answer):
    """The slots of a run on a machine.

    `instance_type` and `price_per_hour`, the price of these slots in dollars, are null for a
    machine without an instance.
    """

    agent_id: str
    slots: list[str]
    instance_type: str | None = None
    price_per_hour: float | None = None


class TimelineRun(Answer):
    """A run of a trial.

    `placed_ms` is the time at which the run got its slots, and `running_ms` the start of all its
    containers, or null. `outcome` is the reason of the exit or `lost`, and "" before the end.
    `reason` is the reason of a preemption or a loss.
    """

    epoch: int
    places: list[RunPlace]
    placed_ms: int
    running_ms: int | None = None
    preempted_ms: int | None = None
    ended_ms: int | None = None
    outcome: str = ""
    reason: str = ""


class TimelineWait(Answer):
    """A wait of a trial. `until_ms` is null during the wait."""

    kind: WaitKind
    from_ms: int
    until_ms: int | None = None


class TrialTimeline(Answer):
    """The runs and waits of a trial, in the order of time.

    `is_cut` is true if the trial has later runs that are left out.
    """

    trial_id: int
    number: int
    created_ms: int
    ended_ms: int | None
    runs: list[TimelineRun]
    waits: list[TimelineWait]
    is_cut: bool


def list_timelines(
    services: Services, experiment_id: int, page: PageRequest
) -> Page[TrialTimeline]:
    """Return a page of the timelines of the experiment's trials, sorted by number.

    A page has at most TRIALS_MAX trials, and ends early after SCANNED_MAX journal entries. Deleted
    trials are left out, so that a page may be short.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, for a cursor of another
            list.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after("timelines", (int,))
    number = 0 if after is None else int(after[0]) + 1
    end = min(state.trials, number + min(page.limit, TRIALS_MAX))
    ids = experiments.trial_ids(services, state, number, end)
    items: list[TrialTimeline] = []
    scanned = 0
    for head in services.experiments.read_trials(ids):
        number += 1
        if head is not None and not head.deleted:
            entries = list(_read_entries(services, head.trial_id))
            scanned += len(entries)
            items.append(_timeline(head, entries))
        if scanned >= SCANNED_MAX:
            break
    cursor = encode_cursor("timelines", (number - 1,)) if number < state.trials else None
    return Page(items=items, next_cursor=cursor)


def _read_entries(services: Services, trial_id: int) -> Iterator[RecordedEntry]:
    """Yield the first entries of a trial's journal, at most ENTRIES_OF_TRIAL_MAX + 1.

    Entries that cannot be decoded are skipped. Raises TableError.
    """
    rows = journal.read_entry_rows(services.table, addresses.trial(trial_id))
    for row in islice(rows, ENTRIES_OF_TRIAL_MAX + 1):
        try:
            yield journal.read_entry(row)
        except ValueError:
            continue


def _timeline(state: TrialState, entries: list[RecordedEntry]) -> TrialTimeline:
    """Build the timeline of a trial from journal entries."""
    builder = _TimelineBuilder()
    for entry in entries[:ENTRIES_OF_TRIAL_MAX]:
        for message in _messages(state.trial_id, entry):
            builder.apply(message, entry)
    is_cut = len(entries) > ENTRIES_OF_TRIAL_MAX
    if state.ended_ms is not None and not is_cut:
        builder.end(state.ended_ms)
    return TrialTimeline(
        trial_id=state.trial_id,
        number=state.number,
        created_ms=state.created_ms,
        ended_ms=state.ended_ms,
        runs=builder.runs,
        waits=builder.waits,
        is_cut=is_cut,
    )


def _messages(trial_id: int, entry: RecordedEntry) -> Iterable[Any]:
    """Yield the messages of an entry that this release can decode. Dead letters have none."""
    actor_type = actor_type_at(addresses.trial(trial_id))
    for name, fields in () if entry.is_dead_letter else entry.messages:
        try:
            message = actor_type.decode_message(name, fields)
        except (KeyError, ValueError):
            continue
        if isinstance(message, SHOWN):
            yield message


@dataclass
class _TimelineBuilder:
    """The builder of a trial up to the messages applied so far."""

    runs: list[TimelineRun] = field(default_factory=list)
    waits: list[TimelineWait] = field(default_factory=list)
    is_active: bool = True
    """Whether the experiment is active."""
    has_work: bool = False
    """Whether the search has assigned a length that the trial has not reached."""
    ended_nodes: int = 0
    """The nodes of the open run that have exited or were lost."""

    @property
    def run(self) -> TimelineRun | None:
        """The open run. None while the trial holds no slots."""
        return self.runs[-1] if self.runs and self.runs[-1].ended_ms is None else None

    def apply(self, message: Any, entry: RecordedEntry) -> None:
        """Apply a message of SHOWN at the entry's time, and begin or end the present wait."""
        now_ms = entry.now_ms
        match message:
            case TrialCreated():
                self.has_work = message.length is not None
                self.is_active = message.experiment_status is Status.ACTIVE
            case TrialContinued():
                self.has_work = self.is_active = True
            case WorkAssigned():
                self.has_work = message.length is not None and not message.stopped
            case LengthReached():
                self.has_work = False
            case ExperimentStatusChanged():
                self.is_active = message.status is Status.ACTIVE
            case SlotsAssigned():
                self._begin_run(message, entry)
            case _ if self.run is not None and message.epoch == self.run.epoch:
                self._change_run(self.run, message, now_ms)
        self._update_wait(now_ms)

    def end(self, now_ms: int) -> None:
        """End the open run and the present wait with the trial."""
        if self.run is not None:
            self.runs[-1] = self.run.model_copy(update={"ended_ms": now_ms})
        self._end_wait(now_ms)

    def _begin_run(self, message: SlotsAssigned, entry: RecordedEntry) -> None:
        if self.run is not None:
            if self.run.epoch == message.epoch:
                return
            self.runs[-1] = self.run.model_copy(update={"ended_ms": entry.now_ms})
        self.ended_nodes = 0
        places = [_run_place(place, entry) for place in message.places]
        run = TimelineRun(epoch=message.epoch, places=places, placed_ms=entry.now_ms)
        self.runs.append(run)

    def _change_run(self, run: TimelineRun, message: Any, now_ms: int) -> None:
        """Change the open run by a message about the run."""
        changes: dict[str, Any] = {}
        match message:
            case ContainerStateReported() if message.state == AllocationState.RUNNING:
                changes = {"running_ms": run.running_ms or now_ms}
            case PreemptionRequested() if run.preempted_ms is None:
                changes = {"preempted_ms": now_ms, "reason": message.reason}
            case AllocationExited():
                self.ended_nodes += 1
                changes = {"outcome": run.outcome or message.reason}
            case AllocationLost():
                self.ended_nodes += 1 if message.agent else len(run.places)
                changes = {"outcome": run.outcome or LOST, "reason": run.reason or message.reason}
        if self.ended_nodes >= len(run.places):
            changes["ended_ms"] = now_ms
        self.runs[-1] = run.model_copy(update=changes)

    def _update_wait(self, now_ms: int) -> None:
        """End the present wait if the reason has changed, and begin the next wait."""
        kind = self._wait_kind()
        if self.waits and self.waits[-1].until_ms is None:
            if self.waits[-1].kind == kind:
                return
            self._end_wait(now_ms)
        if kind is not None:
            self.waits.append(TimelineWait(kind=kind, from_ms=now_ms))

    def _end_wait(self, now_ms: int) -> None:
        if self.waits and self.waits[-1].until_ms is None:
            self.waits[-1] = self.waits[-1].model_copy(update={"until_ms": now_ms})

    def _wait_kind(self) -> WaitKind | None:
        """Return the reason of the present wait. None while the trial holds slots."""
        if self.run is not None:
            return None
        if not self.is_active:
            return WaitKind.PAUSED
        return WaitKind.SLOTS if self.has_work else WaitKind.SEARCH


def _run_place(place: Place, entry: RecordedEntry) -> RunPlace:
    """Return a place of a run, with the machine of the instance row that the commit read."""
    answer = RunPlace(agent_id=place.agent, slots=[str(slot) for slot in place.slots])
    for name, (_, body) in entry.rows_read.items():
        if name.endswith(f"/{place.agent}") and body:
            offering = json.loads(body).get("offering") or {}
            slots, price = offering.get("slots") or 0, offering.get("price_per_hour")
            share = min(len(place.slots), slots) / slots if slots else 0
            return answer.model_copy(
                update={
                    "instance_type": offering.get("instance_type"),
                    "price_per_hour": None if price is None else price * share,
                }
            )
    return answer
