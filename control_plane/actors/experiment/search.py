"""The experiment's search: passing it events and input, and applying its operations.

While the experiment is stopping, the search counts events and asks for nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment.custom_search import (
    check_batch_sizes,
    check_search_open,
    custom_state,
)
from control_plane.actors.experiment.job import current_trial_settings
from control_plane.actors.experiment.state import (
    ExperimentState,
    SearchParts,
    definition_of,
)
from control_plane.actors.experiment.status import change_status
from control_plane.actors.experiment.suggestions import awaited_suggestion, update_suggestion_row
from control_plane.actors.experiment.trial_summaries import add_summary, open_summary, summary_of
from control_plane.actors.identifiers import BLOCK_MAX, block_size, take_ids
from control_plane.actors.messages.experiment import SearchContinued
from control_plane.actors.messages.trial import TrialCreated, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.method import (
    Close,
    CreateTrial,
    Event,
    Shutdown,
    Stop,
    SuggestedPoints,
    SuggestionFailed,
    TrainTo,
)
from control_plane.searchers.methods.custom import is_repeated, post_status
from control_plane.searchers.posted_operations import PostedOperations, PostRefused
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import SearchPlan, SearchStep, TrialOperation

# The most trials created in one commit: each is a message row, and a commit holds 100 operations.
CREATE_MAX = 48
# Bytes of hyperparameters in one commit, which each trial is created with a copy of.
CREATE_BYTES_MAX = 2_200_000

SearchCall = Callable[[SearchPlan, Generator, BlobStore], SearchStep]


def expand_backlog(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Create the next trials of the search's backlog, or close the next ones it has decided on."""
    if state.status.is_stopping or state.status.is_final:
        return state

    def expand(plan: SearchPlan, generator: Generator, parts: BlobStore) -> SearchStep:
        result = search.expand_creates(plan, state.search, generator, _create_max(context), parts)
        created = sum(isinstance(operation, CreateTrial) for operation in result.operations)
        closed = sum(isinstance(operation, Close) for operation in result.operations)
        context.add_reason(f"trials created: {created}" if created else f"trials closed: {closed}")
        return result

    return _run_search(state, context, expand, is_continued=False)


def apply_event(state: ExperimentState, event: Event, context: StepContext) -> ExperimentState:
    """Pass an event to the search, and apply the operations that it answers with."""
    if state.status.is_stopping or state.status.is_final:
        return evolve(state, search=search.count_event(state.search, event))

    def handle(plan: SearchPlan, generator: Generator, parts: BlobStore) -> SearchStep:
        return search.handle_event(
            plan, state.search, generator, event, _create_max(context), parts
        )

    return _run_search(state, context, handle)


def apply_suggestion(
    state: ExperimentState, message: SuggestedPoints | SuggestionFailed, context: StepContext
) -> ExperimentState:
    """Pass suggested points to the search, if it still awaits them."""
    if awaited_suggestion(state) != message.first:
        return state
    if isinstance(message, SuggestionFailed):
        state = evolve(state, message=f"drawn at random instead of suggested: {message.why}")
    return _apply_external_input(state, message, context)


def apply_post(
    state: ExperimentState, posted: PostedOperations, context: StepContext
) -> ExperimentState:
    """Apply a post of the user's search method; the reply has the numbers of posts and events."""
    if not is_repeated(custom_state(state), posted):
        check_search_open(state)
        check_batch_sizes(posted, definition_of(context).settings.lengths)
        try:
            state = _apply_external_input(state, posted, context)
        except PostRefused as error:
            raise CommandRefused(error.code, str(error)) from None
        if not state.search.shutdown:
            # The progress of a custom search is what its method says, and may go back.
            progress = search.completed_share(definition_of(context).plan, state.search)
            state = evolve(state, progress=progress)
    context.reply = post_status(custom_state(state))
    return state


def apply_operations(
    state: ExperimentState, result: SearchStep, context: StepContext
) -> ExperimentState:
    """Take the search's next state, and send its operations to trials as messages."""
    definition = definition_of(context)
    progress = state.progress
    if not result.state.shutdown:
        # A search that was shut down may have failed, so its progress stays where it was.
        progress = max(progress or 0.0, search.completed_share(definition.plan, result.state))
    after = evolve(state, search=result.state, progress=progress)
    state = update_suggestion_row(state, after, context)
    creates = [op for op in result.operations if isinstance(op, CreateTrial)]
    if creates:
        state = _create_trials(state, creates, context)
    for number, assigned in _work_by_trial(result.operations).items():
        summary = open_summary(number, state.life, context)
        if summary is not None:
            context.send(addresses.trial(summary.trial_id), assigned)
    shutdown = next((op for op in result.operations if isinstance(op, Shutdown)), None)
    if shutdown is None:
        return state
    return change_status(_explain_empty_search(state), _stopping_status(shutdown), context)


def _apply_external_input(
    state: ExperimentState,
    external: SuggestedPoints | SuggestionFailed | PostedOperations,
    context: StepContext,
) -> ExperimentState:
    def handle(plan: SearchPlan, generator: Generator, parts: BlobStore) -> SearchStep:
        return search.handle_external_input(
            plan, state.search, generator, external, _create_max(context), parts
        )

    return _run_search(state, context, handle)


def _run_search(
    state: ExperimentState, context: StepContext, call: SearchCall, *, is_continued: bool = True
) -> ExperimentState:
    """Call the search and apply its operations. `is_continued`: where there was a backlog before,
    a message that continues it is on the way already.
    """
    key = context.part("generator", bytes)
    assert key is not None
    generator = Generator.from_state(key, state.search.position)
    is_continued = is_continued and search.has_more(state.search)
    result = call(definition_of(context).plan, generator, SearchParts(context))
    if result.more and not is_continued:
        context.send(context.address, SearchContinued())
    # The 2,496 bytes of the generator change once in 624 draws; its position is in the head.
    if generator.key != key:
        context.write_part("generator", generator.key)
    return apply_operations(state, result, context)


def _create_max(context: StepContext) -> int:
    """The most trials to create in one commit. A trial's hyperparameters are no longer than the
    configuration that they are drawn from.
    """
    config_bytes = len(definition_of(context).config.encode())
    return max(1, min(CREATE_MAX, CREATE_BYTES_MAX // max(1, config_bytes)))


def _work_by_trial(operations: Iterable[TrialOperation]) -> dict[int, WorkAssigned]:
    """The work that the operations assign to trials, by the trial's number."""
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


def _explain_empty_search(state: ExperimentState) -> ExperimentState:
    """Add a message to an experiment whose search ended without requesting any trial."""
    if state.search.tally.requested:
        return state
    text = f"the {state.searcher} search made no trial: its configuration leaves none to make"
    return evolve(state, message=text)


def _stopping_status(shutdown: Shutdown) -> Status:
    if shutdown.failure:
        return Status.STOPPING_ERROR
    return Status.STOPPING_CANCELED if shutdown.cancel else Status.STOPPING_COMPLETED


def _create_trials(
    state: ExperimentState, creates: list[CreateTrial], context: StepContext
) -> ExperimentState:
    settings = current_trial_settings(state, context)
    size = block_size(state.trials) if state.grows_id_blocks else BLOCK_MAX
    ids, trial_ids = take_ids("trial", state.ids, len(creates), context, size)
    for operation, trial_id in zip(creates, trial_ids, strict=True):
        add_summary(operation.trial, trial_id, context)
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
            parent_id=_trial_id(operation.parent, context),
        )
        context.send(addresses.trial(trial_id), created)
    return evolve(
        state,
        ids=ids,
        trials=state.trials + len(creates),
        trials_open=state.trials_open + len(creates),
    )


def _trial_id(number: int | None, context: StepContext) -> int | None:
    summary = None if number is None else summary_of(number, context)
    return None if summary is None else summary.trial_id
