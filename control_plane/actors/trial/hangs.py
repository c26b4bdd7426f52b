"""Hanging runs: processes that live, but neither report nor print anything.

The agent of the first node detects a hang, and prints the stacks of its processes to the log. The
agents of the other nodes get the number of the hang as a directive, and do the same. The trial
compares the places of all processes. If the settings say so, the run then ends as a failure.
"""

from collections import Counter
from collections.abc import Sequence

from control_plane.actors.messages.trial_hangs import (
    PLACES_MAX,
    HangReported,
    HangTimeOver,
    StacksReported,
)
from control_plane.actors.step import StepContext
from control_plane.actors.trial.allocation import kill
from control_plane.actors.trial.state import Allocation, DesiredState, Hang, TrialState
from control_plane.evolve import evolve

STACKS_MS = 10_000
"""The time after a hang in which all nodes print the stacks, in ms."""
RANKS_SHOWN = 8


def apply_hang_message(
    state: TrialState,
    allocation: Allocation,
    message: HangReported | StacksReported | HangTimeOver,
    context: StepContext,
) -> TrialState:
    """Record the beginning or the end of a hang, or the places of hanging processes.

    At the end of the time for stacks, kill the allocation if the settings restart hanging runs. An
    allocation that was asked to stop ignores all three messages.
    """
    if allocation.desired_state is not DesiredState.RUN:
        return state
    match message:
        case HangReported():
            return _record_hang(state, allocation, message, context)
        case StacksReported():
            return _record_places(state, allocation, message, context)
        case HangTimeOver(number=number):
            return _end_hanging_run(state, allocation, number, context)


def hang_text(hang: Hang) -> str:
    """Return a sentence for users about a hang, with the ranks that differ from most ranks."""
    minutes = hang.silent_ms / 60_000
    time = f"{minutes:.0f} min" if minutes >= 2 else f"{hang.silent_ms / 1000:.0f} s"
    places = places_text(hang.places)
    return f"it has neither reported nor printed anything for {time}" + (
        f": {places}" if places else ""
    )


def places_text(places: Sequence[tuple[int, str]]) -> str:
    """Return where the processes hang. "" without places.

    The place of most ranks comes first, followed by each rank in another place. At most RANKS_SHOWN
    ranks are named.
    """
    if not places:
        return ""
    [(common, count), *others] = Counter(place for _, place in places).most_common()
    if not others:
        subject = "all ranks are" if count > 1 else "the process is"
        return f"{subject} in {common}"
    differing = [(rank, place) for rank, place in sorted(places) if place != common]
    named = ", ".join(f"rank {rank} in {place}" for rank, place in differing[:RANKS_SHOWN])
    more = len(differing) - RANKS_SHOWN
    rest = f" and {more} more" if more > 0 else ""
    if count == 1:
        first = min(rank for rank, place in places if place == common)
        return f"rank {first} is in {common}, {named}{rest}"
    return f"{count} ranks are in {common}, but {named}{rest}"


def _record_hang(
    state: TrialState, allocation: Allocation, message: HangReported, context: StepContext
) -> TrialState:
    """Record the beginning or the end of a hang. The directives of a gang change at the beginning.

    A HangTimeOver timer is set if the settings restart hanging runs.
    """
    before = allocation.hang
    if message.silent_ms == 0:
        if before is None or before.is_over:
            return state
        context.add_reason("the run works again")
        return evolve(state, allocation=evolve(allocation, hang=evolve(before, is_over=True)))
    number = 1 if before is None else before.number + 1
    hang = Hang(number, context.now_ms - message.silent_ms, message.silent_ms)
    context.add_reason(hang_text(hang))
    if state.settings.restarts_hangs:
        context.set_timer(context.now_ms + STACKS_MS, HangTimeOver(state.epoch, number))
    revision = state.revision + 1 if allocation.is_gang else state.revision
    return evolve(state, allocation=evolve(allocation, hang=hang), revision=revision)


def _record_places(
    state: TrialState, allocation: Allocation, message: StacksReported, context: StepContext
) -> TrialState:
    """Add the places of a node's processes to the present hang. Ranks that are known are replaced.

    Without a present hang, the state stays unchanged.
    """
    hang = allocation.hang
    if hang is None or hang.is_over:
        return state
    places = dict(hang.places) | dict(message.places)
    hang = evolve(hang, places=tuple(sorted(places.items())[:PLACES_MAX]))
    context.add_reason(places_text(hang.places))
    return evolve(state, allocation=evolve(allocation, hang=hang))


def _end_hanging_run(
    state: TrialState, allocation: Allocation, number: int, context: StepContext
) -> TrialState:
    """Kill the allocation of a run that still hangs. The end counts as a failure.

    A run that works again stays unchanged, and so does a run with a later hang.
    """
    hang = allocation.hang
    if hang is None or hang.is_over or hang.number != number:
        return state
    text = hang_text(hang)
    context.add_reason("stopped, because hang_detection restarts hanging runs")
    return kill(state, evolve(allocation, has_hung=True), text)
