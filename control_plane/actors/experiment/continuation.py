"""The continuation of an ended experiment: trials that did not complete are open again.

The search counts the reopened trials as if they had never ended. The trials continue from their
latest checkpoints. The experiment begins a new run generation, and ignores messages of earlier
generations.

If the search limits the number of open trials, the other trials wait in their final status. When a
trial ends, the next waiting trial continues. After the last waiting trial, the search creates new
trials.
"""

from collections.abc import Sequence
from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment.expiry import plan_expiry
from control_plane.actors.experiment.job import current_trial_settings
from control_plane.actors.experiment.search import create_max, run_search
from control_plane.actors.experiment.state import Definition, ExperimentState, definition_of
from control_plane.actors.experiment.trial_summaries import replace_summary, summaries
from control_plane.actors.experiment.waiting_trials import EndedTrial, exit_reason, waiting_trials
from control_plane.actors.messages.experiment import ContinueRequested
from control_plane.actors.messages.trial import ExperimentStatusChanged, TrialContinued
from control_plane.actors.records import JobKind, Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.method import Event
from control_plane.searchers.randomness import Generator
from control_plane.searchers.registry import can_continue, searcher_specs
from control_plane.searchers.search import ReopenedTrial, SearchPlan, SearchStep
from detcloud.shared.plurals import count_text

_ENDED = (Status.COMPLETED, Status.CANCELED, Status.ERROR)


def continue_experiment(
    state: ExperimentState, message: ContinueRequested, context: StepContext
) -> ExperimentState:
    """Begin the next run generation, and send the reopened trials a TrialContinued.

    The status becomes ACTIVE, and the changes of the message are stored in the part `definition`.
    The reply is the experiment's id. If the message limits the number of open trials, further
    trials wait. The caller writes the listing row and the job row, and lets the search create
    trials of its backlog.

    Raises:
        CommandRefused: conflict; the experiment cannot be continued, or has nothing left to do.
    """
    context.reply = state.experiment_id
    before = state.status
    _check_continuable(state)
    definition = _update_definition(message, context)
    # Code that decides how long to train may want to train on, so the trial is reopened.
    lengthened = message.plan is not None or (state.is_open_ended and state.searcher == "single")
    trials = _trials_to_reopen(state, lengthened, context)
    reopened = search.reopen_trials(
        definition.plan, state.search, _reopened_trials(trials, state), lengthened=lengthened
    )
    if not trials and not reopened.more:
        raise _nothing_left_error(state)
    places = (
        search.places_at_once(definition.plan, state.search) if message.limits_open_trials else None
    )
    first, waiting = trials[:places], trials[len(trials[:places]) :]
    ends = [trial.summary.status for trial in trials]
    state = evolve(
        state,
        status=Status.ACTIVE,
        search=reopened.state,
        trials_open=len(trials),
        trials_completed=state.trials_completed - ends.count(Status.COMPLETED),
        trials_errored=state.trials_errored - ends.count(Status.ERROR),
        progress=search.completed_share(definition.plan, reopened.state),
        ended_ms=None,
        ends_ms=None,
        message="",
        run_generation=state.run_generation + 1,
        first_waiting_trial=_first_waiting_number(waiting, state)
        if message.limits_open_trials
        else -1,
    )
    state = plan_expiry(state, context)
    continued = count_text(len(first), "trial")
    later = f"; {count_text(len(waiting), 'trial')} waiting for a place" if waiting else ""
    context.add_reason(f"{before} to {Status.ACTIVE}: {continued} continued{later}")
    length = definition.plan.method.max_length if message.plan else None
    for trial in first:
        if trial.summary.status == Status.COMPLETED:
            ended = trial.summary._replace(status="", run_generation=state.run_generation)
            replace_summary(trial.number, ended, context)
        _send_continued(trial, state, length, context)
    return state


def continue_after_end(
    state: ExperimentState, event: Event, context: StepContext
) -> ExperimentState:
    """Pass a trial's end to a continued search, and send the next waiting trial a TrialContinued.

    The search may also create trials, up to its limit of open trials.
    """

    def handle(plan: SearchPlan, generator: Generator, parts: BlobStore) -> SearchStep:
        return search.handle_end_of_continued(
            plan, state.search, generator, event, create_max(context)
        )

    after = run_search(state, context, handle)
    trial = next(waiting_trials(state, context), None)
    if trial is None:
        return after
    context.add_reason(f"trial {trial.summary.trial_id} continues: a place is free")
    _send_continued(trial, after, None, context)
    return evolve(after, first_waiting_trial=trial.number + 1)


def _first_waiting_number(waiting: Sequence[EndedTrial], state: ExperimentState) -> int:
    """Return the number of the first waiting trial. Without any, return the number of trials."""
    return waiting[0].number if waiting else state.trials


def _reopened_trials(trials: Sequence[EndedTrial], state: ExperimentState) -> list[ReopenedTrial]:
    """Convert ended trials to the search's form, in order."""
    return [
        ReopenedTrial(exit_reason(trial.summary, state.search.tally), trial.summary.units)
        for trial in trials
    ]


def _send_continued(
    trial: EndedTrial, state: ExperimentState, length: int | None, context: StepContext
) -> None:
    """Send a trial a TrialContinued with the present settings of trials.

    If the experiment's status is not ACTIVE, an ExperimentStatusChanged follows.

    Args:
        length: the new length in the configured unit. None: the trial keeps its length.
    """
    to = addresses.trial(trial.summary.trial_id)
    settings = current_trial_settings(state, context)
    context.send(to, TrialContinued(state.run_generation, settings, length))
    if state.status is not Status.ACTIVE:
        context.send(to, ExperimentStatusChanged(state.status))


def _check_continuable(state: ExperimentState) -> None:
    """Check that the experiment may be continued.

    Raises:
        CommandRefused: conflict; the experiment is a command, notebook or shell, has not ended or
            is archived, or its searcher cannot continue.
    """
    name = state.title
    if state.kind is not JobKind.EXPERIMENT:
        text = f"{name} cannot be continued: it saves no checkpoints; start another one"
        raise CommandRefused("conflict", text)
    if state.status not in _ENDED:
        text = (
            f"{name} is {state.status}: only an experiment in state COMPLETED, CANCELED or ERROR "
            "can be continued"
        )
        raise CommandRefused("conflict", text)
    if state.archived:
        raise CommandRefused("conflict", f"{name} is archived; unarchive it first")
    if not can_continue(state.searcher):
        known = ", ".join(spec.name for spec in searcher_specs() if spec.can_continue)
        text = (
            f"{name} is a search by {state.searcher}, which cannot be continued; these searchers "
            f"can: {known}"
        )
        raise CommandRefused("conflict", text)


def _update_definition(message: ContinueRequested, context: StepContext) -> Definition:
    """Return the definition with the changes of the message. Write the part `definition` if
    anything changed.
    """
    before = after = definition_of(context)
    if message.plan is not None:
        after = replace(after, plan=message.plan)
    if message.config is not None:
        after = replace(after, config=message.config)
    if message.max_restarts is not None:
        settings = replace(after.settings, max_restarts=message.max_restarts)
        after = replace(after, settings=settings)
    if after != before:
        context.write_part("definition", after)
    return after


def _trials_to_reopen(
    state: ExperimentState, lengthened: bool, context: StepContext
) -> list[EndedTrial]:
    """Return the trials that did not complete, by number. If `lengthened`, return all trials."""
    return [
        EndedTrial(number, summary)
        for number, summary in enumerate(summaries(state.trials, context))
        if lengthened or summary.status != Status.COMPLETED
    ]


def _nothing_left_error(state: ExperimentState) -> CommandRefused:
    """Return the refusal of a continuation without anything left to train."""
    text = (
        f"all trials of experiment {state.experiment_id} completed: there is nothing left to "
        "continue"
    )
    if state.searcher == "single":
        text += "; increase searcher.max_length or searcher.max_steps"
    return CommandRefused("conflict", text)
