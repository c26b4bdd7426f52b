"""The driver of a search: passes events to the search method and turns creates into trials.

Only the driver draws random numbers. Creates wait in a backlog, first in, first out, so trial
numbers do not depend on how many trials are created per step. For each trial, the driver draws the
hyperparameters in the order of the sorted names, then the 16 bytes of the request id, then the
seed. A grid point draws no hyperparameters.

The state contains counters instead of trials, so the size does not grow with the search. The caller
must pass the end of each trial exactly once, and no later event of that trial. The driver ignores
an event that is recognizably late or unknown from the counters, and checks the counters with
assertions.
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
    """The settings of a search, made from a configuration."""

    method: AnyMethodPlan
    space: Group
    seed: int
    """The experiment's seed, of 32 bits."""


@dataclass(frozen=True)
class SearchState:
    """The state of a search between two events, without the blobs and the generator's key."""

    method: AnyMethodState
    position: int = KEY_WORDS
    """The generator's position; see Generator."""
    backlog: tuple[Create, ...] = ()
    """Creates, or remaining parts of creates, that the driver has not turned into trials yet."""
    tally: Tally = field(default_factory=Tally)
    shutdown: bool = False
    """Whether the search has ended. The driver then ignores all events."""


NO_BLOBS = NoBlobStore()
TrialOperation = CreateTrial | TrainTo | Close | Stop | Shutdown


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The result of a step of the driver."""

    state: SearchState
    operations: tuple[TrialOperation, ...]
    """In the order of execution."""
    more: bool
    """Whether `expand_creates` has work left."""
    is_large: bool = False
    """Whether the step is large enough to fill a commit; see MethodStep."""


def begin_search(plan: SearchPlan, blobs: BlobStore = NO_BLOBS) -> SearchStep:
    """Return the first step of a search. Draws no random numbers and creates no trials yet.

    The caller must seed the generator with the plan's seed. If the plan has no trials, the step
    shuts the search down as failed. The search stores data in `blobs`, here and in the functions
    below. Single, random and grid searches do not use `blobs`.
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
    """Return the step after an event of a trial, with at most `create_max` created trials.

    Further creates wait in the state's backlog, and `more` is then True. Advances `generator` in
    place; the generator's position must equal `state.position`. An event that is late, or of an
    unknown trial, changes nothing.

    Raises:
        ValueError: the units of the event are negative or not finite.
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
    """Return the step after input from outside the search.

    Creates at most `create_max` trials; further creates wait in the state's backlog, and `more` is
    then True. Advances `generator` in place; the generator's position must equal `state.position`.
    After the shutdown, nothing changes and no error is raised.

    Raises:
        PostRefused: the input is a post that the custom search cannot carry out. No blob is
            written.
    """
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
    """Return a step that creates at most `create_max` trials of the backlog, in order.

    If the backlog is empty and the method is closing, ask the method to close or create at most
    `create_max` trials instead; see `SearchMethod.close_more`. Advances `generator` in place.
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
    """An ended trial that a continuation opens again."""

    reason: ExitReason | None
    """The reason of an early exit. None if the trial ended normally."""
    units: float
    """The training that the trial reported before the end."""


def count_event(state: SearchState, event: Event) -> SearchState:
    """Return the state with the event counted in the tally. The search method is not called.

    For searches that must return no more operations. Nothing changes after the shutdown, for an
    unknown trial, or with all created trials closed. Other repeated events are counted again.

    Raises:
        ValueError: the units of the event are negative or not finite.
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
    """Return the step that continues an ended search with `trials` open again.

    All created trials must be closed. The step contains operations that became due when ends were
    only counted; see `count_event`. Draws no random numbers. If no work is left, the step shuts the
    search down again.

    Args:
        plan: the plan of the continued search.
        lengthened: whether trials train longer than before, so that no length counts as reached.
    """
    reasons = [trial.reason for trial in trials if trial.reason is not None]
    tally = state.tally
    # The counts stay at least 0, even if an end was not counted.
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


def handle_end_of_continued(
    plan: SearchPlan, state: SearchState, generator: Generator, event: Event, create_max: int
) -> SearchStep:
    """Return the step after the end of a trial in a continued search.

    The event is only counted; the operations, also a shutdown, come from the method's `resume`.
    Creates trials up to the search's limit of open trials, at most `create_max`, and advances
    `generator` as `handle_event` does. If reopened trials exceed the limit, no trial is created. An
    event that is late, or of an unknown trial, changes nothing.

    Raises:
        ValueError: the units of the event are negative or not finite.
    """
    if _is_late(state, event):
        return SearchStep(state, (), more=has_more(state))
    tally = _next_tally(state.tally, event)
    answer = make_method(plan, NO_BLOBS).resume(state.method, tally)
    step = _apply_answer(plan, tally, answer, state.position, state.backlog)
    return _expand_further(plan, step, generator, create_max, NO_BLOBS)


def places_at_once(plan: SearchPlan, state: SearchState) -> int | None:
    """Return the number of trials that a continuation may open at the same time. None: no limit.

    All created trials must be closed. Trials that are requested but not created yet count as open.
    """
    limit = make_method(plan, NO_BLOBS).open_trials_max
    waiting = state.tally.requested - state.tally.created
    return None if limit is None else max(0, limit - waiting)


def has_more(state: SearchState) -> bool:
    """Return whether `expand_creates` has trials to create or to close."""
    return bool(state.backlog) or (not state.shutdown and state.method.is_closing)


def completed_share(plan: SearchPlan, state: SearchState) -> float:
    """Return the completed share of the search, in [0, 1]. 1 after the shutdown.

    The share is 0 if the method's estimate is not finite. The share can decrease when a trial with
    reported training refuses the hyperparameters, because the training of invalid trials does not
    count.
    """
    if state.shutdown:
        return 1.0
    share = make_method(plan, NO_BLOBS).progress(state.method, state.tally)
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def make_method(plan: SearchPlan, blobs: BlobStore) -> SearchMethod[Any]:
    """Return the search method for a plan.

    The method caches blobs: nothing else may write the search's blobs while the method is in use.
    """
    return spec_of_plan(plan.method).make_method(plan.method, plan.space, blobs)


def _expand_further(
    plan: SearchPlan, step: SearchStep, generator: Generator, create_max: int, blobs: BlobStore
) -> SearchStep:
    """Return the step extended by one call of `expand_creates`, unless the step is large."""
    if not step.more or step.is_large:
        return step
    expanded = expand_creates(plan, step.state, generator, create_max, blobs)
    return replace(expanded, operations=step.operations + expanded.operations)


def _is_late(state: SearchState, event: Event) -> bool:
    """Return whether to ignore an event: after the shutdown, of an unknown trial, or with all
    created trials closed.
    """
    tally = state.tally
    return state.shutdown or not 0 <= event.trial < tally.created or tally.closed == tally.created


def _next_tally(tally: Tally, event: Event) -> Tally:
    """Return the tally with the event counted.

    Raises:
        ValueError: the units of a progress or end event are negative or not finite.
    """
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
    # Sums of floats do not cancel exactly. Without open trials, no rounding error may remain.
    open_units = 0.0 if closed == tally.created else max(tally.open_units - units, 0.0)
    return evolve(tally, closed=closed, open_units=open_units)


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
    """Return the step for a method's answer.

    Creates go into the backlog; all other operations go into the step. If all requested trials are
    closed, and the method neither waits for input nor is closing, a shutdown is appended to the
    step. With a shutdown, from the method or appended, the answer's creates and the backlog are
    dropped, and the state is marked as shut down.

    Args:
        answer: the method's answer to the first step, an event or an input.
        position: the generator's position for the state.
        backlog: the backlog before the answer.
    """
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
    shutdown = any(isinstance(operation, Shutdown) for operation in operations)
    queue = () if shutdown else _extend_backlog(backlog, creates)
    state = SearchState(answer.state, position, queue, tally, shutdown)
    return SearchStep(state, tuple(operations), has_more(state), answer.is_large)


def _final_shutdown(plan: SearchPlan, tally: Tally) -> Shutdown:
    """Return the shutdown of a search without remaining work.

    The search failed if all requested trials failed; see SearchRules.any_exit_fails. Otherwise the
    search is canceled if all requested trials were canceled.
    """
    failed = tally.exited if plan.method.rules.any_exit_fails else tally.errored
    if failed >= tally.requested:
        return Shutdown(failure=True)
    return Shutdown(failure=False, cancel=tally.canceled >= tally.requested)


def _extend_backlog(backlog: tuple[Create, ...], creates: list[Create]) -> tuple[Create, ...]:
    """Return the backlog with creates appended.

    A create that continues the last create is merged with the last one, so that the backlog stays
    short even if creates are expanded slowly.
    """
    queue = list(backlog)
    for create in creates:
        last = queue[-1] if queue else None
        if last and create == replace(_create_remainder(last, last.count), count=create.count):
            queue[-1] = replace(last, count=last.count + create.count)
        else:
            queue.append(create)
    return tuple(queue)


def _create_remainder(create: Create, count: int) -> Create:
    """Return a create without the first `count` trials."""
    is_indexed = create.hparams in ("FromGrid", "Kept")
    offset = count * create.point_step if is_indexed else 0
    return replace(create, count=create.count - count, first_point=create.first_point + offset)


def _make_trial(
    plan: SearchPlan, trial: int, create: Create, i: int, generator: Generator, blobs: BlobStore
) -> CreateTrial:
    """Return the creation of trial number `trial`, the `i`-th trial of `create`.

    Draws the hyperparameters unless stored or from the grid, then the request id unless stored,
    then the seed.
    """
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
            hparams = explore_hparams(
                plan.space,
                load_point(blobs, parent).hparams,
                generator,
                plan.method.exploration,
                maxval_drawn=maxval_drawn,
                integers_move=plan.method.integers_move,
            )
    request_id = request_id or _draw_request_id(generator)
    seed = generator.draw_below(1 << 31)
    return CreateTrial(trial, request_id, seed, hparams, create.length, create.closed, parent)


def _draw_request_id(generator: Generator) -> str:
    """Draw a random UUID (version 4) from 16 random bytes, by RFC 9562, section 5.4."""
    drawn = bytearray()
    for _ in range(4):
        drawn += generator.draw_word().to_bytes(4, "little")
    drawn[6] = drawn[6] & 0x0F | 0x40
    drawn[8] = drawn[8] & 0x3F | 0x80
    text = drawn.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _check_invariants(state: SearchState, generator: Generator) -> None:
    """Raise AssertionError if the counts, the backlog or the generator's position do not match."""
    tally = state.tally
    waiting = sum(create.count for create in state.backlog)
    assert 0 <= tally.closed <= tally.created <= tally.requested, tally
    assert state.shutdown or tally.requested == tally.created + waiting, (tally, waiting)
    assert generator.position == state.position, (generator.position, state.position)
