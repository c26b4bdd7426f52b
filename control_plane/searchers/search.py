"""The driver of a search: folds events through a method and expands its creates into trials.

The driver alone draws. Creates wait in a backlog and are expanded first in, first out, so trial i
is the i-th create whatever the chunk size. Each trial draws its hyperparameters (sorted names; a
grid point draws none), then the 16 bytes of its request id, then its seed.

The state holds no trial: it is a few counters, whatever the size of the search. The caller
therefore passes on each trial's end once and no event after it (a repeated early exit is the
caller's to ignore); the driver drops what its counters can tell to be late or unknown, and asserts
them after every step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from control_plane.evolve import evolve
from control_plane.searchers.blob_store import BlobStore, NoBlobStore
from control_plane.searchers.exploration import explore_hparams
from control_plane.searchers.method import (
    Close,
    Create,
    CreateTrial,
    Event,
    ExitReason,
    ExploringPlan,
    ExternalInput,
    MethodStep,
    SearchMethod,
    Shutdown,
    Stop,
    Tally,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
    TrialValidationReported,
)
from control_plane.searchers.randomness import KEY_WORDS, Generator
from control_plane.searchers.registry import AnyMethodPlan, AnyMethodState, spec_of_plan
from control_plane.searchers.space import Group, draw_hparams, grid_point
from control_plane.searchers.stored_points import load_point


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search as its configuration asks for it; `seed` is a 32 bit experiment seed."""

    method: AnyMethodPlan
    space: Group
    seed: int


@dataclass(frozen=True)
class SearchState:
    """A search between two events, beside the generator's key; `position` is the generator's."""

    method: AnyMethodState
    position: int = KEY_WORDS
    backlog: tuple[Create, ...] = ()
    tally: Tally = field(default_factory=Tally)
    shutdown: bool = False


NO_BLOBS = NoBlobStore()
TrialOperation = CreateTrial | TrainTo | Close | Stop | Shutdown


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The next state, the operations in order, and whether `expand_creates` has something to do. A
    step that `is_large` fills a commit alone.
    """

    state: SearchState
    operations: tuple[TrialOperation, ...]
    more: bool
    is_large: bool = False


def begin_search(plan: SearchPlan, blobs: BlobStore = NO_BLOBS) -> SearchStep:
    """Start a search for a generator seeded with the plan's seed; draws nothing.

    A plan that makes no trial is shut down at once, as failed. `blobs` is where the search keeps
    what grows with its trials, here and below; single, random and grid searches keep nothing.
    """
    return _apply_answer(plan, Tally(), make_method(plan, blobs).first_step(), KEY_WORDS, ())


def handle_event(
    plan: SearchPlan,
    state: SearchState,
    generator: Generator,
    event: Event,
    create_max: int,
    blobs: BlobStore = NO_BLOBS,
) -> SearchStep:
    """Answer one event, then expand at most `create_max` of what waits.

    Advances `generator` in place, which must stand at `state.position`. ValueError for units that
    are negative or not finite.
    """
    if _is_late(state, event):
        return SearchStep(state, (), more=has_more(state))
    tally = _next_tally(state.tally, event)
    answer = make_method(plan, blobs).on_event(state.method, event)
    step = _apply_answer(plan, tally, answer, state.position, state.backlog)
    return _expand_further(plan, step, generator, create_max, blobs)


def handle_external_input(
    plan: SearchPlan,
    state: SearchState,
    generator: Generator,
    external_input: ExternalInput,
    create_max: int,
    blobs: BlobStore,
) -> SearchStep:
    """Answer input from outside, then expand as `handle_event` does."""
    if state.shutdown:
        return SearchStep(state, (), more=False)
    answer = make_method(plan, blobs).on_external_input(state.method, external_input)
    step = _apply_answer(plan, state.tally, answer, state.position, state.backlog)
    return _expand_further(plan, step, generator, create_max, blobs)


def expand_creates(
    plan: SearchPlan,
    state: SearchState,
    generator: Generator,
    create_max: int,
    blobs: BlobStore = NO_BLOBS,
) -> SearchStep:
    """Turn at most `create_max` waiting creates into trials, advancing `generator` in place; with
    none waiting, close as many trials of those that the method has still to close.
    """
    _check_invariants(state, generator)
    method = make_method(plan, blobs)
    created: list[CreateTrial] = []
    method_state = state.method
    backlog = list(state.backlog)
    while backlog and len(created) < create_max:
        head = backlog.pop(0)
        count = min(head.count, create_max - len(created))
        for i in range(count):
            trial = state.tally.created + len(created)
            created.append(_make_trial(plan, trial, head, i, generator, blobs))
            method_state = method.on_trial_created(method_state, created[-1])
        if count < head.count:
            backlog.insert(0, _create_remainder(head, count))
    tally = evolve(state.tally, created=state.tally.created + len(created))
    position = generator.position
    after = evolve(
        state, method=method_state, tally=tally, backlog=tuple(backlog), position=position
    )
    _check_invariants(after, generator)
    if created or not after.method.is_closing:
        return SearchStep(after, tuple(created), more=has_more(after))
    answer = method.close_more(after.method, tally.requested, create_max)
    return _apply_answer(plan, tally, answer, after.position, after.backlog)


class ReopenedTrial(NamedTuple):
    """A trial that is open again: why it was closed, None for an ordinary end, and the training
    it had reported.
    """

    reason: ExitReason | None
    units: float


def count_event(state: SearchState, event: Event) -> SearchState:
    """Count an event of a search that is to ask for nothing more.

    ValueError for units that are negative or not finite.
    """
    if _is_late(state, event):
        return state
    return evolve(state, tally=_next_tally(state.tally, event))


def reopen_trials(
    plan: SearchPlan,
    state: SearchState,
    trials: Sequence[ReopenedTrial],
    *,
    lengthened: bool = False,
) -> SearchStep:
    """Undo the ends of `trials`, when every trial created is closed, and go on.

    The method asks now for what it would have asked for at ends that were only counted. `plan` may
    be `lengthened`: then no length counts as reached. Draws nothing; with nothing left to do the
    search is shut down again.
    """
    reasons = [trial.reason for trial in trials if trial.reason is not None]
    tally = state.tally
    # Never below zero, should an end not have been counted.
    tally = evolve(
        tally,
        closed=tally.created - len(trials),
        exited=max(0, tally.exited - len(reasons)),
        errored=max(0, tally.errored - reasons.count(ExitReason.ERRORED)),
        invalid=max(0, tally.invalid - sum(reason.is_invalid_hparams for reason in reasons)),
        canceled=max(0, tally.canceled - reasons.count(ExitReason.USER_CANCELED)),
        reached=0 if lengthened else tally.reached,
        open_units=math.fsum(trial.units for trial in trials),
    )
    answer = make_method(plan, NO_BLOBS).resume(state.method, tally)
    return _apply_answer(plan, tally, answer, state.position, state.backlog)


def has_more(state: SearchState) -> bool:
    """Whether `expand_creates` has something to do."""
    return bool(state.backlog) or (not state.shutdown and state.method.is_closing)


def completed_share(plan: SearchPlan, state: SearchState) -> float:
    """Compute the completed share in [0, 1]; 1 once the search was shut down.

    It falls only where a trial is found invalid after it had trained: such work does not count.
    """
    if state.shutdown:
        return 1.0
    share = make_method(plan, NO_BLOBS).progress(state.method, state.tally)
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def make_method(plan: SearchPlan, blobs: BlobStore) -> SearchMethod[Any]:
    """Make the method of a plan, to be used as long as nobody else writes its blobs."""
    return spec_of_plan(plan.method).make_method(plan.method, plan.space, blobs)


def _expand_further(
    plan: SearchPlan, step: SearchStep, generator: Generator, create_max: int, blobs: BlobStore
) -> SearchStep:
    if not step.more or step.is_large:
        return step
    expanded = expand_creates(plan, step.state, generator, create_max, blobs)
    return replace(expanded, operations=step.operations + expanded.operations)


def _is_late(state: SearchState, event: Event) -> bool:
    tally = state.tally
    return state.shutdown or not 0 <= event.trial < tally.created or tally.closed == tally.created


def _next_tally(tally: Tally, event: Event) -> Tally:
    match event:
        case TrialLengthReached():
            return evolve(tally, reached=tally.reached + 1)
        case TrialValidationReported():
            return tally
        case TrialProgressed(units=units):
            _check_units(event.trial, units)
            return evolve(tally, units=tally.units + units, open_units=tally.open_units + units)
        case TrialClosed(units=units):
            return _tally_of_closed_trial(tally, event.trial, units)
        case TrialExitedEarly(reason=reason, units=units):
            return evolve(
                _tally_of_closed_trial(tally, event.trial, units),
                exited=tally.exited + 1,
                errored=tally.errored + (reason is ExitReason.ERRORED),
                invalid=tally.invalid + reason.is_invalid_hparams,
                canceled=tally.canceled + (reason is ExitReason.USER_CANCELED),
            )


def _tally_of_closed_trial(tally: Tally, trial: int, units: float) -> Tally:
    _check_units(trial, units)
    closed = tally.closed + 1
    # Sums of fractions do not cancel exactly: what is left of them must not outlive the trials.
    left = 0.0 if closed == tally.created else max(tally.open_units - units, 0.0)
    return evolve(tally, closed=closed, open_units=left)


def _check_units(trial: int, units: float) -> None:
    if not (math.isfinite(units) and units >= 0):
        raise ValueError(f"trial {trial} reported {units} units; expected a finite number >= 0")


def _apply_answer(
    plan: SearchPlan,
    tally: Tally,
    answer: MethodStep[Any],
    position: int,
    backlog: tuple[Create, ...],
) -> SearchStep:
    """Apply a method's answer: queue its creates, pass the rest on, end a search that is done."""
    if not answer.operations and tally.requested != tally.closed:
        state = SearchState(answer.state, position, backlog, tally)
        return SearchStep(state, (), more=has_more(state))
    creates = [op for op in answer.operations if isinstance(op, Create) and op.count > 0]
    operations: list[TrialOperation] = [
        op for op in answer.operations if not isinstance(op, Create)
    ]
    tally = evolve(tally, requested=tally.requested + sum(create.count for create in creates))
    is_waiting = answer.state.awaits_external_input or answer.state.is_closing
    if tally.requested == tally.closed and not is_waiting:
        operations.append(_final_shutdown(plan, tally))
    shutdown = any(isinstance(one, Shutdown) for one in operations)
    queue = () if shutdown else _extend_backlog(backlog, creates)
    state = SearchState(answer.state, position, queue, tally, shutdown)
    return SearchStep(state, tuple(operations), has_more(state), answer.is_large)


def _final_shutdown(plan: SearchPlan, tally: Tally) -> Shutdown:
    failed = tally.exited if plan.method.rules.any_exit_fails else tally.errored
    if failed >= tally.requested:
        return Shutdown(failure=True)
    return Shutdown(failure=False, cancel=tally.canceled >= tally.requested)


def _extend_backlog(backlog: tuple[Create, ...], creates: list[Create]) -> tuple[Create, ...]:
    """Append creates, joining like ones: the backlog stays short however slowly it is expanded."""
    queue = list(backlog)
    for create in creates:
        last = queue[-1] if queue else None
        if last and create == replace(_create_remainder(last, last.count), count=create.count):
            queue[-1] = replace(last, count=last.count + create.count)
        else:
            queue.append(create)
    return tuple(queue)


def _create_remainder(create: Create, count: int) -> Create:
    """Return the rest of a create without its first `count` trials."""
    moves = create.hparams in ("FromGrid", "Kept")
    passed = count * create.point_step if moves else 0
    return replace(create, count=create.count - count, first_point=create.first_point + passed)


def _make_trial(
    plan: SearchPlan, trial: int, create: Create, i: int, generator: Generator, blobs: BlobStore
) -> CreateTrial:
    place = create.first_point + i * create.point_step
    request_id, parent = "", None
    hparams: Mapping[str, object]
    maxval_drawn = plan.method.rules.maxval_drawn
    match create.hparams:
        case "FromGrid":
            hparams = grid_point(plan.space, place)
        case "Kept":
            hparams, request_id = load_point(blobs, place)
        case "Sampled":
            hparams = draw_hparams(plan.space, generator, maxval_drawn=maxval_drawn)
        case "Explored":
            assert isinstance(plan.method, ExploringPlan)
            parent = create.first_point
            point, exploration = load_point(blobs, parent).hparams, plan.method.exploration
            hparams = explore_hparams(
                plan.space, point, generator, exploration, maxval_drawn=maxval_drawn
            )
    request_id = request_id or _draw_request_id(generator)
    seed = generator.draw_below(1 << 31)
    return CreateTrial(trial, request_id, seed, hparams, create.length, create.closed, parent)


def _draw_request_id(generator: Generator) -> str:
    """Draw 16 bytes and force the bits of a random (version 4) UUID; RFC 9562, section 5.4."""
    drawn = bytearray()
    for _ in range(4):
        drawn += generator.draw_word().to_bytes(4, "little")
    drawn[6] = drawn[6] & 0x0F | 0x40
    drawn[8] = drawn[8] & 0x3F | 0x80
    text = drawn.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _check_invariants(state: SearchState, generator: Generator) -> None:
    tally = state.tally
    waiting = sum(create.count for create in state.backlog)
    assert 0 <= tally.closed <= tally.created <= tally.requested, tally
    assert state.shutdown or tally.requested == tally.created + waiting, (tally, waiting)
    assert generator.position == state.position, (generator.position, state.position)
