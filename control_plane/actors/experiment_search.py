"""The experiment's search: what it is told, and what becomes of its operations.

While the experiment is stopping, the search counts what happens and asks for nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment_custom import method_of, refused_when_over
from control_plane.actors.experiment_job import settings_for_trials
from control_plane.actors.experiment_messages import SearchContinued
from control_plane.actors.experiment_state import (
    ExperimentState,
    SearchParts,
    definition_of,
)
from control_plane.actors.experiment_status import with_status
from control_plane.actors.experiment_suggestions import asked, awaited
from control_plane.actors.experiment_summaries import add_summary, open_summary, summary_of
from control_plane.actors.identifiers import take
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_messages import TrialCreated, WorkAssigned
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.custom import is_repeated, standing
from control_plane.searchers.method import (
    Close,
    CreateTrial,
    Event,
    Shutdown,
    Stop,
    Suggested,
    SuggestionFailed,
    TrainTo,
)
from control_plane.searchers.parts import Parts
from control_plane.searchers.posted import Posted, PostRefused
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import SearchPlan, SearchStep, TrialOperation

# Creates in one commit: each is a message row, and 100 operations is what a commit holds.
CREATE_MAX = 48

Answer = Callable[[SearchPlan, Generator, Parts], SearchStep]


def expanded(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Creates the next trials of the search's backlog, or closes the next that it leaves behind."""
    if state.status.stopping or state.status.final:
        return state

    def expand(plan: SearchPlan, generator: Generator, parts: Parts) -> SearchStep:
        found = search.expand(plan, state.search, generator, CREATE_MAX, parts)
        created = sum(isinstance(operation, CreateTrial) for operation in found.operations)
        closed = sum(isinstance(operation, Close) for operation in found.operations)
        turn.because(f"trials created: {created}" if created else f"trials closed: {closed}")
        return found

    return _answered(state, turn, expand, is_continued=False)


def searched(state: ExperimentState, event: Event, turn: Turn) -> ExperimentState:
    """Hands an event to the search."""
    if state.status.stopping or state.status.final:
        return evolve(state, search=search.noted(state.search, event))

    def handle(plan: SearchPlan, generator: Generator, parts: Parts) -> SearchStep:
        return search.handle(plan, state.search, generator, event, CREATE_MAX, parts)

    return _answered(state, turn, handle)


def suggested(
    state: ExperimentState, advice: Suggested | SuggestionFailed, turn: Turn
) -> ExperimentState:
    """Hands a suggestion to the search, if it is still awaited."""
    if awaited(state) != advice.first:
        return state
    if isinstance(advice, SuggestionFailed):
        state = evolve(state, message=f"drawn at random instead of suggested: {advice.why}")
    return _advised(state, advice, turn)


def steered(state: ExperimentState, posted: Posted, turn: Turn) -> ExperimentState:
    """Does what the user's search method asks for; the reply is how far it is understood."""
    if not is_repeated(method_of(state), posted):
        refused_when_over(state)
        try:
            state = _advised(state, posted, turn)
        except PostRefused as error:
            raise Refused(error.code, str(error)) from None
        if not state.search.shutdown:
            # Unlike other searches' its progress is what it says, and may go back.
            told = search.progress(definition_of(turn).plan, state.search)
            state = evolve(state, progress=told)
    turn.reply = standing(method_of(state))
    return state


def carried_out(state: ExperimentState, found: SearchStep, turn: Turn) -> ExperimentState:
    """Turns the search's operations into messages to trials."""
    definition = definition_of(turn)
    progress = state.progress
    if not found.state.shutdown:
        # A search that is shut down is over, which is no progress where it failed.
        progress = max(progress or 0.0, search.progress(definition.plan, found.state))
    state = asked(state, evolve(state, search=found.state, progress=progress), turn)
    creates = [op for op in found.operations if isinstance(op, CreateTrial)]
    if creates:
        state = _created(state, creates, turn)
    for number, assigned in _work(found.operations).items():
        summary = open_summary(number, state.life, turn)
        if summary is not None:
            turn.send(addresses.trial(summary.trial_id), assigned)
    shutdown = next((op for op in found.operations if isinstance(op, Shutdown)), None)
    if shutdown is None:
        return state
    return with_status(_explained(state), _ending(shutdown), turn)


def _advised(
    state: ExperimentState, advice: Suggested | SuggestionFailed | Posted, turn: Turn
) -> ExperimentState:
    def advise(plan: SearchPlan, generator: Generator, parts: Parts) -> SearchStep:
        return search.advise(plan, state.search, generator, advice, CREATE_MAX, parts)

    return _answered(state, turn, advise)


def _answered(
    state: ExperimentState, turn: Turn, answer: Answer, *, is_continued: bool = True
) -> ExperimentState:
    """Has the search answer and carries that out. `is_continued`: a message that goes on with what
    it had not done yet is under way, if there was any.
    """
    key = turn.part("generator", bytes)
    assert key is not None
    generator = Generator.restored(key, state.search.position)
    is_continued = is_continued and search.has_more(state.search)
    found = answer(definition_of(turn).plan, generator, SearchParts(turn))
    if found.more and not is_continued:
        turn.send(turn.address, SearchContinued())
    # The 2,496 bytes of the generator change once in 624 draws; its position is in the head.
    if generator.key != key:
        turn.write_part("generator", generator.key)
    return carried_out(state, found, turn)


def _work(operations: Iterable[TrialOperation]) -> dict[int, WorkAssigned]:
    """What is asked of each trial, by its number."""
    work: dict[int, WorkAssigned] = {}
    for operation in operations:
        match operation:
            case TrainTo(trial, length):
                work[trial] = WorkAssigned(length, False)
            case Close(trial):
                work[trial] = replace(work.get(trial, WorkAssigned(None, True)), closed=True)
            case Stop(trial):
                work[trial] = WorkAssigned(None, closed=True, stopped=True)
    return work


def _explained(state: ExperimentState) -> ExperimentState:
    """Where no trial can say why the search ended, it says so itself."""
    if state.search.tally.requested:
        return state
    text = f"the {state.searcher} search made no trial: its configuration leaves none to make"
    return evolve(state, message=text)


def _ending(shutdown: Shutdown) -> Status:
    if shutdown.failure:
        return Status.STOPPING_ERROR
    return Status.STOPPING_CANCELED if shutdown.cancel else Status.STOPPING_COMPLETED


def _created(state: ExperimentState, creates: list[CreateTrial], turn: Turn) -> ExperimentState:
    settings = settings_for_trials(state, turn)
    ids, trial_ids = take("trial", state.ids, len(creates), turn)
    for operation, trial_id in zip(creates, trial_ids, strict=True):
        add_summary(operation.trial, trial_id, turn)
        created = TrialCreated(
            trial_id=trial_id,
            experiment_id=state.experiment_id,
            number=operation.trial,
            request_id=operation.request_id,
            hparams=operation.hparams,
            seed=operation.seed,
            length=operation.length,
            closed=operation.closed,
            experiment_status=state.status,
            settings=settings,
            life=state.life,
            parent_id=_trial_id(operation.parent, turn),
        )
        turn.send(addresses.trial(trial_id), created)
    return evolve(
        state,
        ids=ids,
        trials=state.trials + len(creates),
        trials_open=state.trials_open + len(creates),
    )


def _trial_id(number: int | None, turn: Turn) -> int | None:
    summary = None if number is None else summary_of(number, turn)
    return None if summary is None else summary.trial_id
