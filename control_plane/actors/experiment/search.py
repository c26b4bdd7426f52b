"""The experiment's search: events and inputs go to the search, and operations go to the trials.

While the experiment is stopping, the search only counts events and returns no operations.
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

# The most trials created in a commit. Each is a message row, and a commit has 100 operations.
CREATE_MAX = 48
# The most bytes of hyperparameters in a commit. Each new trial gets a copy of the hyperparameters.
CREATE_BYTES_MAX = 2_200_000

SearchCall = Callable[[SearchPlan, Generator, BlobStore], SearchStep]
"""A function that calls the search with a plan, a random generator and a blob store."""


def expand_backlog(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Create the next trials of the search's backlog, or close trials that the search has to close.

    New trials get a TrialCreated, and closed trials a WorkAssigned. At most `create_max` trials are
    created. If work is left, the experiment is sent a SearchContinued. The state stays unchanged
    while the experiment is stopping and after the end. A paused experiment creates trials as well.
    """
    if state.status.is_stopping or state.status.is_final:
        return state

    def expand(plan: SearchPlan, generator: Generator, parts: BlobStore) -> SearchStep:
        result = search.expand_creates(plan, state.search, generator, create_max(context), parts)
        created = sum(isinstance(operation, CreateTrial) for operation in result.operations)
        closed = sum(isinstance(operation, Close) for operation in result.operations)
        context.add_reason(f"trials created: {created}" if created else f"trials closed: {closed}")
        return result

    return run_search(state, context, expand, is_continued=False)


def apply_event(state: ExperimentState, event: Event, context: StepContext) -> ExperimentState:
    """Pass an event to the search, and apply the operations that the search returns
    (`apply_operations`).

    While the experiment is stopping or after the end, the search only counts the event.
    """
    if state.status.is_stopping or state.status.is_final:
        return evolve(state, search=search.count_event(state.search, event))

    def handle(plan: SearchPlan, generator: Generator, parts: BlobStore) -> SearchStep:
        return search.handle_event(plan, state.search, generator, event, create_max(context), parts)

    return run_search(state, context, handle)


def apply_suggestion(
    state: ExperimentState, message: SuggestedPoints | SuggestionFailed, context: StepContext
) -> ExperimentState:
    """Pass suggested points to the search, which then creates trials as `apply_operations`
    describes.

    After a failed suggestion, the search draws at random, and the experiment's message says so.
    Return the state unchanged unless the search waits for the points from `message.first` on.
    """
    if awaited_suggestion(state) != message.first:
        return state
    if isinstance(message, SuggestionFailed):
        state = evolve(state, message=f"drawn at random instead of suggested: {message.why}")
    return _apply_external_input(state, message, context)


def apply_post(
    state: ExperimentState, posted: PostedOperations, context: StepContext
) -> ExperimentState:
    """Apply a post of the user's search method. The reply has the numbers of posts and events.

    The operations are applied as in `apply_operations`. The progress becomes the share that the
    search reports, and may decrease. A repeated post changes nothing and gets the present numbers,
    even after the end of the search.

    Raises:
        CommandRefused: conflict, if the search is not a custom search or is over. Otherwise the
            code with which the search refuses the post, or invalid for a missing batch size.
    """
    if not is_repeated(custom_state(state), posted):
        check_search_open(state)
        check_batch_sizes(posted, definition_of(context).settings.lengths)
        try:
            state = _apply_external_input(state, posted, context)
        except PostRefused as error:
            raise CommandRefused(error.code, str(error)) from None
        if not state.search.shutdown:
            # The method of a custom search sets the progress, which may decrease.
            progress = search.completed_share(definition_of(context).plan, state.search)
            state = evolve(state, progress=progress)
    context.reply = post_status(custom_state(state))
    return state


def apply_operations(
    state: ExperimentState, result: SearchStep, context: StepContext
) -> ExperimentState:
    """Store the search's next state, and send the operations to trials.

    New trials get a TrialCreated, and open trials a WorkAssigned. Operations for ended trials are
    dropped. A shutdown changes the status to a stopping one, and ends the experiment at once if no
    trial is open. The suggestion row is updated. The progress never decreases here.
    """
    definition = definition_of(context)
    progress = state.progress
    if not result.state.shutdown:
        # A search that was shut down may have failed, so the progress is not set to 1.
        progress = max(progress or 0.0, search.completed_share(definition.plan, result.state))
    after = evolve(state, search=result.state, progress=progress)
    state = update_suggestion_row(state, after, context)
    creates = [op for op in result.operations if isinstance(op, CreateTrial)]
    if creates:
        state = _create_trials(state, creates, context)
    for number, assigned in _work_by_trial(result.operations).items():
        summary = open_summary(number, state.run_generation, context)
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
    """Pass suggested points or a post to the search, and apply the operations (`apply_operations`).

    Raises:
        PostRefused: the search refuses the post.
    """

    def handle(plan: SearchPlan, generator: Generator, parts: BlobStore) -> SearchStep:
        return search.handle_external_input(
            plan, state.search, generator, external, create_max(context), parts
        )

    return run_search(state, context, handle)


def run_search(
    state: ExperimentState, context: StepContext, call: SearchCall, *, is_continued: bool = True
) -> ExperimentState:
    """Call the search, store the new state and generator, and apply the operations.

    If the search has more to do than fits into the commit, send the experiment a SearchContinued.

    Args:
        call: the function of the search to call. It may raise PostRefused.
        is_continued: whether a search with a backlog has sent a SearchContinued already. If True,
            no message is sent for a search that had a backlog before.
    """
    key = context.part("generator", bytes)
    assert key is not None
    generator = Generator.from_state(key, state.search.position)
    is_continued = is_continued and search.has_more(state.search)
    result = call(definition_of(context).plan, generator, SearchParts(context))
    if result.more and not is_continued:
        context.send(context.address, SearchContinued())
    # The generator's 2,496 bytes change only every 624 draws. The position is in the head.
    if generator.key != key:
        context.write_part("generator", generator.key)
    return apply_operations(state, result, context)


def create_max(context: StepContext) -> int:
    """Return the most trials that a commit may create: at least 1, and at most CREATE_MAX.

    The estimate assumes that a trial's hyperparameters are no longer than the configuration.
    """
    config_bytes = len(definition_of(context).config.encode())
    return max(1, min(CREATE_MAX, CREATE_BYTES_MAX // max(1, config_bytes)))


def _work_by_trial(operations: Iterable[TrialOperation]) -> dict[int, WorkAssigned]:
    """Return the work that the operations assign to each trial, by the trial's number."""
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
    """Set the message of an experiment, if the search ended without requesting any trial."""
    if state.search.tally.requested:
        return state
    text = f"the {state.searcher} search made no trial: its configuration leaves none to make"
    return evolve(state, message=text)


def _stopping_status(shutdown: Shutdown) -> Status:
    """Return the status with which an experiment stops after a shutdown of the search.

    A failure gives STOPPING_ERROR, a cancellation STOPPING_CANCELED, and any other shutdown
    STOPPING_COMPLETED.
    """
    if shutdown.failure:
        return Status.STOPPING_ERROR
    return Status.STOPPING_CANCELED if shutdown.cancel else Status.STOPPING_COMPLETED


def _create_trials(
    state: ExperimentState, creates: list[CreateTrial], context: StepContext
) -> ExperimentState:
    """Send a TrialCreated for each requested trial, and add the summaries. Return the updated
    state.

    The ids come from the reserved block. A new block is a write of the counter row, and the commit
    fails if the row changes meanwhile.
    """
    settings = current_trial_settings(state, context)
    size = block_size(state.trials) if state.has_growing_id_blocks else BLOCK_MAX
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
            run_generation=state.run_generation,
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
    """Return the cluster-wide id of the trial with a number.

    Return None for None or an unknown number.
    """
    summary = None if number is None else summary_of(number, context)
    return None if summary is None else summary.trial_id
