"""Continuing an ended experiment: its trials that did not complete are open again.

The search counts them as open, as if they had never ended; the trials themselves go on from their
latest checkpoints. A new run generation of the experiment begins (`life`): messages of an earlier
one are late.
"""

from dataclasses import replace
from typing import NamedTuple

from control_plane.actors import addresses
from control_plane.actors.experiment.job import current_trial_settings
from control_plane.actors.experiment.state import Definition, ExperimentState, definition_of
from control_plane.actors.experiment.trial_summaries import TrialSummary, replace_summary, summaries
from control_plane.actors.messages.experiment import ContinueRequested
from control_plane.actors.messages.trial import TrialContinued
from control_plane.actors.records import JobKind, Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.method import ExitReason, Tally
from control_plane.searchers.search import ReopenedTrial

# Searches whose trials do not depend on each other's results.
CONTINUABLE = ("single", "random", "grid")
_ENDED = (Status.COMPLETED, Status.CANCELED, Status.ERROR)


class _Trial(NamedTuple):
    number: int
    summary: TrialSummary


def continue_experiment(
    state: ExperimentState, message: ContinueRequested, context: StepContext
) -> ExperimentState:
    """Begin the next run generation and tell the trials; the search may have trials to create.

    Raises:
        CommandRefused: conflict, if the experiment cannot go on or has nothing left to do.
    """
    context.reply = state.experiment_id
    _check_continuable(state)
    definition = _update_definition(message, context)
    # Where its code decides how long a single trial trains, it may find that there is more to do.
    lengthened = message.plan is not None or (state.is_open_ended and state.searcher == "single")
    trials = _trials_to_reopen(state, lengthened, context)
    reasons = [_exit_reason(trial.summary, state.search.tally) for trial in trials]
    reopened = search.reopen_trials(
        definition.plan,
        state.search,
        [ReopenedTrial(why, item.summary.units) for why, item in zip(reasons, trials, strict=True)],
        lengthened=lengthened,
    )
    if not trials and not reopened.more:
        raise _nothing_left_error(state)
    life = state.life + 1
    length = definition.plan.method.max_length if message.plan else None
    settings = current_trial_settings(state, context)
    for trial in trials:
        if trial.summary.status == Status.COMPLETED:
            replace_summary(trial.number, trial.summary._replace(status="", life=life), context)
        to = addresses.trial(trial.summary.trial_id)
        context.send(to, TrialContinued(life, settings, length))
    context.add_reason(f"{state.status} to {Status.ACTIVE}: {len(trials)} trials go on")
    ends = [trial.summary.status for trial in trials]
    return evolve(
        state,
        status=Status.ACTIVE,
        search=reopened.state,
        trials_open=len(trials),
        trials_completed=state.trials_completed - ends.count(Status.COMPLETED),
        trials_errored=state.trials_errored - ends.count(Status.ERROR),
        progress=search.completed_share(definition.plan, reopened.state),
        ended_ms=None,
        message="",
        life=life,
    )


def _check_continuable(state: ExperimentState) -> None:
    name = state.title
    if state.kind is not JobKind.EXPERIMENT:
        text = f"{name} cannot be continued: it saves nothing to go on from; start another one"
        raise CommandRefused("conflict", text)
    if state.status not in _ENDED:
        text = (
            f"{name} is {state.status}: only an experiment in state COMPLETED, CANCELED or ERROR "
            "can be continued"
        )
        raise CommandRefused("conflict", text)
    if state.archived:
        raise CommandRefused("conflict", f"{name} is archived; unarchive it first")
    if state.searcher not in CONTINUABLE:
        known = ", ".join(CONTINUABLE)
        text = (
            f"{name} is a search by {state.searcher}, which cannot be continued; these searchers "
            f"can: {known}"
        )
        raise CommandRefused("conflict", text)


def _update_definition(message: ContinueRequested, context: StepContext) -> Definition:
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
) -> list[_Trial]:
    return [
        _Trial(number, summary)
        for number, summary in enumerate(summaries(state.trials, context))
        if lengthened or summary.status != Status.COMPLETED
    ]


def _exit_reason(summary: TrialSummary, tally: Tally) -> ExitReason | None:
    """The exit reason by which the search counted the trial's end, None for an ordinary end. A
    completed trial is the only one of its search, whose tally has the reason.
    """
    if summary.status == Status.ERROR:
        return ExitReason.ERRORED
    if summary.status == Status.CANCELED:
        return ExitReason.USER_CANCELED
    if tally.invalid:
        return ExitReason.INVALID_HP
    return ExitReason.USER_REQUESTED_STOP if tally.exited else None


def _nothing_left_error(state: ExperimentState) -> CommandRefused:
    text = (
        f"all trials of experiment {state.experiment_id} completed: there is nothing left to "
        "continue"
    )
    if state.searcher == "single":
        text += "; increase searcher.max_length or searcher.max_steps"
    return CommandRefused("conflict", text)
