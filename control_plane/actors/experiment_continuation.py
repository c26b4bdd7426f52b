"""An ended experiment goes on: its trials that did not complete are open again.

The search counts them as open, as if their ends had never been; the trials themselves go on from
their latest checkpoints. It begins a new life of the experiment: whatever is still said of an
earlier one is late.
"""

from dataclasses import replace
from typing import NamedTuple

from control_plane.actors import addresses
from control_plane.actors.experiment_job import settings_for_trials
from control_plane.actors.experiment_messages import ContinueRequested
from control_plane.actors.experiment_state import Definition, ExperimentState, definition_of
from control_plane.actors.experiment_summaries import TrialSummary, summaries, summarise
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_messages import TrialContinued
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.method import ExitReason, Tally
from control_plane.searchers.search import Reopened

# Searches whose trials do not depend on each other's results.
CONTINUABLE = ("single", "random", "grid")
_ENDED = (Status.COMPLETED, Status.CANCELED, Status.ERROR)


class _Trial(NamedTuple):
    number: int
    summary: TrialSummary


def continued(state: ExperimentState, message: ContinueRequested, turn: Turn) -> ExperimentState:
    """The experiment in its next life, with its trials told; its search may have trials to create.

    Raises:
        Refused: conflict, if it cannot go on or has nothing left to do.
    """
    turn.reply = state.experiment_id
    _check(state)
    definition = _redefined(message, turn)
    trials = _to_reopen(state, message.plan is not None, turn)
    reasons = [_reason(trial.summary, state.search.tally) for trial in trials]
    reopened = search.reopened(
        definition.plan,
        state.search,
        [Reopened(why, it.summary.units) for why, it in zip(reasons, trials, strict=True)],
        lengthened=message.plan is not None,
    )
    if not trials and not reopened.more:
        raise _nothing_left(state)
    life = state.life + 1
    length = definition.plan.method.max_length if message.plan else None
    settings = settings_for_trials(state, turn)
    for trial in trials:
        if trial.summary.status == Status.COMPLETED:
            summarise(trial.number, trial.summary._replace(status="", life=life), turn)
        to = addresses.trial(trial.summary.trial_id)
        turn.send(to, TrialContinued(life, settings, length))
    turn.because(f"{state.status} to {Status.ACTIVE}: {len(trials)} trials go on")
    ends = [trial.summary.status for trial in trials]
    return evolve(
        state,
        status=Status.ACTIVE,
        search=reopened.state,
        trials_open=len(trials),
        trials_completed=state.trials_completed - ends.count(Status.COMPLETED),
        trials_errored=state.trials_errored - ends.count(Status.ERROR),
        progress=search.progress(definition.plan, reopened.state),
        ended_ms=None,
        message="",
        life=life,
    )


def _check(state: ExperimentState) -> None:
    name = f"experiment {state.experiment_id}"
    if state.status not in _ENDED:
        text = f"{name} is {state.status}: only one that is COMPLETED, CANCELED or ERROR can go on"
        raise Refused("conflict", text)
    if state.archived:
        raise Refused("conflict", f"{name} is archived; unarchive it first")
    if state.searcher not in CONTINUABLE:
        known = ", ".join(CONTINUABLE)
        text = f"{name} is a search by {state.searcher}, which cannot go on; these can: {known}"
        raise Refused("conflict", text)


def _redefined(message: ContinueRequested, turn: Turn) -> Definition:
    before = after = definition_of(turn)
    if message.plan is not None:
        after = replace(after, plan=message.plan)
    if message.config is not None:
        after = replace(after, config=message.config)
    if message.max_restarts is not None:
        settings = replace(after.settings, max_restarts=message.max_restarts)
        after = replace(after, settings=settings)
    if after != before:
        turn.write_part("definition", after)
    return after


def _to_reopen(state: ExperimentState, lengthened: bool, turn: Turn) -> list[_Trial]:
    return [
        _Trial(number, summary)
        for number, summary in enumerate(summaries(state.trials, turn))
        if lengthened or summary.status != Status.COMPLETED
    ]


def _reason(summary: TrialSummary, tally: Tally) -> ExitReason | None:
    """Why the search took the trial for ended. One that completed is the only one of its search,
    which remembers how.
    """
    if summary.status == Status.ERROR:
        return ExitReason.ERRORED
    if summary.status == Status.CANCELED:
        return ExitReason.USER_CANCELED
    if tally.invalid:
        return ExitReason.INVALID_HP
    return ExitReason.USER_REQUESTED_STOP if tally.exited else None


def _nothing_left(state: ExperimentState) -> Refused:
    text = f"all trials of experiment {state.experiment_id} completed: nothing is left to go on"
    if state.searcher == "single":
        text += "; give it a greater length with searcher.max_length or searcher.max_steps"
    return Refused("conflict", text)
