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
from control_plane.searchers.bayesian import BayesianPlan, BayesianSearch, BayesianState
from control_plane.searchers.custom import CustomPlan, CustomSearch, CustomState
from control_plane.searchers.exploration import explored
from control_plane.searchers.grid import GridPlan, GridSearch, GridState
from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.kept import kept
from control_plane.searchers.method import (
    Advice,
    Close,
    Create,
    CreateTrial,
    Event,
    ExitReason,
    MethodStep,
    SearchMethod,
    Shutdown,
    Stop,
    Tally,
    TrainTo,
    TrialClosed,
    TrialExited,
    TrialMeasured,
    TrialProgressed,
    TrialReached,
)
from control_plane.searchers.parts import NoParts, Parts
from control_plane.searchers.population import Population, PopulationPlan, PopulationState
from control_plane.searchers.random import RandomPlan, RandomSearch, RandomState
from control_plane.searchers.randomness import KEY_WORDS, Generator
from control_plane.searchers.single import SinglePlan, single_search
from control_plane.searchers.space import Group, draw, grid_point, grid_size
from control_plane.searchers.synchronous import SyncHalvingPlan
from control_plane.searchers.tournament import (
    BracketPlan,
    BracketState,
    Tournament,
    TournamentPlan,
    TournamentState,
    alone,
)

MethodPlan = (
    RandomPlan
    | SinglePlan
    | GridPlan
    | BracketPlan
    | TournamentPlan
    | PopulationPlan
    | BayesianPlan
    | CustomPlan
)
AnyMethodState = (
    RandomState
    | GridState
    | BracketState
    | TournamentState
    | PopulationState
    | BayesianState
    | CustomState
)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a configuration asks for, validated; `seed` is a 32 bit experiment seed."""

    method: MethodPlan
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


NO_PARTS = NoParts()
TrialOperation = CreateTrial | TrainTo | Close | Stop | Shutdown


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The next state, what to do in order, and whether `expand` has something to do."""

    state: SearchState
    operations: tuple[TrialOperation, ...]
    more: bool


def begin(plan: SearchPlan, parts: Parts = NO_PARTS) -> SearchStep:
    """Start a search for a generator seeded with the plan's seed; draws nothing.

    A plan that makes no trial is shut down at once, as failed. `parts` is where the search keeps
    what grows with its trials, here and below; single, random and grid searches keep nothing.
    """
    return _folded(plan, Tally(), method_of(plan, parts).initial(), KEY_WORDS, ())


def handle(
    plan: SearchPlan,
    state: SearchState,
    generator: Generator,
    event: Event,
    create_max: int,
    parts: Parts = NO_PARTS,
) -> SearchStep:
    """Answer one event, then expand at most `create_max` of what waits.

    Advances `generator` in place, which must stand at `state.position`. ValueError for units that
    are negative or not finite.
    """
    if _is_late(state, event):
        return SearchStep(state, (), more=has_more(state))
    tally = _counted(state.tally, event)
    answer = method_of(plan, parts).on_event(state.method, event)
    step = _folded(plan, tally, answer, state.position, state.backlog)
    return _expanded(plan, step, generator, create_max, parts)


def advise(
    plan: SearchPlan,
    state: SearchState,
    generator: Generator,
    advice: Advice,
    create_max: int,
    parts: Parts,
) -> SearchStep:
    """Answer what someone outside says, then expand as `handle` does."""
    if state.shutdown:
        return SearchStep(state, (), more=False)
    answer = method_of(plan, parts).on_advice(state.method, advice)
    step = _folded(plan, state.tally, answer, state.position, state.backlog)
    return _expanded(plan, step, generator, create_max, parts)


def expand(
    plan: SearchPlan,
    state: SearchState,
    generator: Generator,
    create_max: int,
    parts: Parts = NO_PARTS,
) -> SearchStep:
    """Turn at most `create_max` waiting creates into trials, advancing `generator` in place; with
    none waiting, close as many trials of those that the method has still to close.
    """
    _check(state, generator)
    method = method_of(plan, parts)
    created: list[CreateTrial] = []
    told = state.method
    backlog = list(state.backlog)
    while backlog and len(created) < create_max:
        head = backlog.pop(0)
        count = min(head.count, create_max - len(created))
        for i in range(count):
            trial = state.tally.created + len(created)
            created.append(_trial(plan, trial, head, i, generator, parts))
            told = method.on_created(told, created[-1])
        if count < head.count:
            backlog.insert(0, _after(head, count))
    tally = evolve(state.tally, created=state.tally.created + len(created))
    position = generator.position
    after = evolve(state, method=told, tally=tally, backlog=tuple(backlog), position=position)
    _check(after, generator)
    if created or not after.method.is_closing:
        return SearchStep(after, tuple(created), more=has_more(after))
    answer = method.close_more(after.method, tally.requested, create_max)
    return _folded(plan, tally, answer, after.position, after.backlog)


class Reopened(NamedTuple):
    """A trial that is open again: why it was closed, None for an ordinary end, and the training
    it had reported.
    """

    reason: ExitReason | None
    units: float


def noted(state: SearchState, event: Event) -> SearchState:
    """Count an event and ask for nothing: of a search that is to create no more.

    ValueError as `handle`.
    """
    if _is_late(state, event):
        return state
    return evolve(state, tally=_counted(state.tally, event))


def reopened(
    plan: SearchPlan, state: SearchState, trials: Sequence[Reopened], *, lengthened: bool = False
) -> SearchStep:
    """Fold the ends of `trials` in reverse, when every trial created is closed, and go on.

    What the method would have asked for at ends that were only noted is asked for now. `plan` may
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
        invalid=max(0, tally.invalid - sum(reason.invalid_hparams for reason in reasons)),
        canceled=max(0, tally.canceled - reasons.count(ExitReason.USER_CANCELED)),
        reached=0 if lengthened else tally.reached,
        open_units=math.fsum(trial.units for trial in trials),
    )
    answer = method_of(plan, NO_PARTS).resumed(state.method, tally)
    return _folded(plan, tally, answer, state.position, state.backlog)


def has_more(state: SearchState) -> bool:
    """Whether `expand` has something to do."""
    return bool(state.backlog) or (not state.shutdown and state.method.is_closing)


def progress(plan: SearchPlan, state: SearchState) -> float:
    """Compute the completed share in [0, 1]; 1 once the search was shut down.

    It falls only where a trial is found invalid after it had trained: such work does not count.
    """
    if state.shutdown:
        return 1.0
    share = method_of(plan, NO_PARTS).progress(state.method, state.tally)
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0


def method_of(plan: SearchPlan, parts: Parts) -> SearchMethod[Any]:
    """The method of a plan, for as long as nobody else writes its parts."""
    # A plan and the state it made belong together, which types cannot say.
    match plan.method:
        case RandomPlan():
            return RandomSearch(plan.method)
        case SinglePlan():
            return single_search(plan.method)
        case GridPlan():
            return GridSearch(plan.method, grid_size(plan.space))
        case HalvingPlan() | SyncHalvingPlan():
            return alone(plan.method, parts)
        case TournamentPlan():
            return Tournament(plan.method, parts)
        case PopulationPlan():
            return Population(plan.method, parts)
        case BayesianPlan():
            return BayesianSearch(plan.method, parts)
        case CustomPlan():
            return CustomSearch(plan.method, parts)


def _expanded(
    plan: SearchPlan, step: SearchStep, generator: Generator, create_max: int, parts: Parts
) -> SearchStep:
    if not step.more:
        return step
    expanded = expand(plan, step.state, generator, create_max, parts)
    return replace(expanded, operations=step.operations + expanded.operations)


def _is_late(state: SearchState, event: Event) -> bool:
    tally = state.tally
    return state.shutdown or not 0 <= event.trial < tally.created or tally.closed == tally.created


def _counted(tally: Tally, event: Event) -> Tally:
    match event:
        case TrialReached():
            return evolve(tally, reached=tally.reached + 1)
        case TrialMeasured():
            return tally
        case TrialProgressed(units=units):
            _check_units(event.trial, units)
            return evolve(tally, units=tally.units + units, open_units=tally.open_units + units)
        case TrialClosed(units=units):
            return _closed(tally, event.trial, units)
        case TrialExited(reason=reason, units=units):
            return evolve(
                _closed(tally, event.trial, units),
                exited=tally.exited + 1,
                errored=tally.errored + (reason is ExitReason.ERRORED),
                invalid=tally.invalid + reason.invalid_hparams,
                canceled=tally.canceled + (reason is ExitReason.USER_CANCELED),
            )


def _closed(tally: Tally, trial: int, units: float) -> Tally:
    _check_units(trial, units)
    closed = tally.closed + 1
    # Sums of fractions do not cancel exactly: what is left of them must not outlive the trials.
    left = 0.0 if closed == tally.created else max(tally.open_units - units, 0.0)
    return evolve(tally, closed=closed, open_units=left)


def _check_units(trial: int, units: float) -> None:
    if not (math.isfinite(units) and units >= 0):
        raise ValueError(f"trial {trial} reported {units} units; expected a finite number >= 0")


def _folded(
    plan: SearchPlan,
    tally: Tally,
    answer: MethodStep[Any],
    position: int,
    backlog: tuple[Create, ...],
) -> SearchStep:
    """Take a method's answer: queue its creates, pass the rest on, end a search that is done."""
    if not answer.operations and tally.requested != tally.closed:
        state = SearchState(answer.state, position, backlog, tally)
        return SearchStep(state, (), more=has_more(state))
    creates = [op for op in answer.operations if isinstance(op, Create) and op.count > 0]
    wishes: list[TrialOperation] = [op for op in answer.operations if not isinstance(op, Create)]
    tally = evolve(tally, requested=tally.requested + sum(create.count for create in creates))
    if tally.requested == tally.closed and not answer.state.awaits_advice:
        wishes.append(_shutdown(plan, tally))
    shutdown = any(isinstance(wish, Shutdown) for wish in wishes)
    queue = () if shutdown else _queued(backlog, creates)
    state = SearchState(answer.state, position, queue, tally, shutdown)
    return SearchStep(state, tuple(wishes), more=has_more(state))


def _shutdown(plan: SearchPlan, tally: Tally) -> Shutdown:
    failed = tally.exited if plan.method.rules.any_exit_fails else tally.errored
    if failed >= tally.requested:
        return Shutdown(failure=True)
    return Shutdown(failure=False, cancel=tally.canceled >= tally.requested)


def _queued(backlog: tuple[Create, ...], creates: list[Create]) -> tuple[Create, ...]:
    """Append creates, joining like ones: the backlog stays short however slowly it is expanded."""
    queue = list(backlog)
    for create in creates:
        last = queue[-1] if queue else None
        if last and create == replace(_after(last, last.count), count=create.count):
            queue[-1] = replace(last, count=last.count + create.count)
        else:
            queue.append(create)
    return tuple(queue)


def _after(create: Create, count: int) -> Create:
    """What is left of a create without its first `count` trials."""
    moves = create.hparams in ("FromGrid", "Kept")
    passed = count * create.point_step if moves else 0
    return replace(create, count=create.count - count, first_point=create.first_point + passed)


def _trial(
    plan: SearchPlan, trial: int, create: Create, i: int, generator: Generator, parts: Parts
) -> CreateTrial:
    place = create.first_point + i * create.point_step
    request_id, parent = "", None
    hparams: Mapping[str, object]
    maxval_drawn = plan.method.rules.maxval_drawn
    match create.hparams:
        case "FromGrid":
            hparams = grid_point(plan.space, place)
        case "Kept":
            hparams, request_id = kept(parts, place)
        case "Sampled":
            hparams = draw(plan.space, generator, maxval_drawn=maxval_drawn)
        case "Explored":
            assert isinstance(plan.method, PopulationPlan)
            parent = create.first_point
            point, exploration = kept(parts, parent).hparams, plan.method.exploration
            hparams = explored(plan.space, point, generator, exploration, maxval_drawn=maxval_drawn)
    request_id = request_id or _request_id(generator)
    seed = generator.below(1 << 31)
    return CreateTrial(trial, request_id, seed, hparams, create.length, create.closed, parent)


def _request_id(generator: Generator) -> str:
    """Draw 16 bytes and force the bits of a random (version 4) UUID; RFC 9562, section 5.4."""
    drawn = bytearray()
    for _ in range(4):
        drawn += generator.word().to_bytes(4, "little")
    drawn[6] = drawn[6] & 0x0F | 0x40
    drawn[8] = drawn[8] & 0x3F | 0x80
    text = drawn.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _check(state: SearchState, generator: Generator) -> None:
    tally = state.tally
    waiting = sum(create.count for create in state.backlog)
    assert 0 <= tally.closed <= tally.created <= tally.requested, tally
    assert state.shutdown or tally.requested == tally.created + waiting, (tally, waiting)
    assert generator.position == state.position, (generator.position, state.position)
