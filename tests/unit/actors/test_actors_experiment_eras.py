"""The stop and the end of experiments in both eras."""

import json
from typing import Any

import pytest

from control_plane.actors.era_rules import LENGTH_ERA, STEP_ERA, LifecycleRules
from control_plane.actors.messages.experiment import (
    CancelRequested,
    KillRequested,
    PauseRequested,
    TrialEnded,
    TrialValidationReported,
)
from control_plane.actors.messages.trial import ExperimentStatusChanged
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import LENGTH, experiment_submitted, random_plan

CANCEL, KILL = CancelRequested(), KillRequested()
ENDED = (Status.COMPLETED, Status.CANCELED, Status.ERROR)
STOPPING = tuple(status for status in Status if status.is_stopping)


def experiment(rules: LifecycleRules, trials: int = 1) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(trials), rules=rules))
    return actor


def experiment_in(rules: LifecycleRules, status: Status) -> ActorHarness:
    actor = experiment(rules)
    actor.state = evolve(actor.state, status=status, trials_open=0 if status.is_final else 1)
    return actor


def trial_canceled(number: int) -> TrialEnded:
    return TrialEnded(number, Status.CANCELED, ExitReason.USER_CANCELED)


def collection(actor: ActorHarness) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(actor.row("collections", "000000000001").body)
    return body


@pytest.mark.parametrize("status", [Status.ACTIVE, Status.PAUSED])
def test_killed_step_era_experiment_is_canceled_with_forced_stops(
    status: Status,
) -> None:
    actor = experiment_in(STEP_ERA, status)
    assert actor.deliver(KILL) == 1
    assert actor.state.status == Status.STOPPING_CANCELED
    assert actor.messages_to("trial#1") == [
        ExperimentStatusChanged(Status.STOPPING_CANCELED, forced=True)
    ]


@pytest.mark.parametrize("status", STOPPING)
def test_second_kill_forces_stops_again_in_the_step_era(
    status: Status,
) -> None:
    actor = experiment_in(STEP_ERA, status)
    actor.deliver(KILL)
    assert actor.state.status is status
    assert actor.messages_to("trial#1") == [ExperimentStatusChanged(status, forced=True)]


@pytest.mark.parametrize("status", ENDED)
def test_kill_of_an_ended_step_era_experiment_is_not_found(
    status: Status,
) -> None:
    actor = experiment_in(STEP_ERA, status)
    with pytest.raises(CommandRefused) as refused:
        actor.deliver(KILL)
    assert refused.value.code == "not_found"
    assert str(refused.value) == (f"experiment 1 has ended ({status}): nothing is left to kill")


@pytest.mark.parametrize(
    "status", [*ENDED, Status.STOPPING_COMPLETED, Status.STOPPING_ERROR, Status.STOPPING_KILLED]
)
def test_ending_step_era_experiment_cannot_be_canceled(status: Status) -> None:
    actor = experiment_in(STEP_ERA, status)
    with pytest.raises(CommandRefused) as refused:
        actor.deliver(CANCEL)
    assert refused.value.code == "conflict"
    assert str(refused.value) == f"experiment 1 is {status} and can no longer be canceled"


def test_canceled_step_era_experiment_may_be_canceled_again() -> None:
    actor = experiment_in(STEP_ERA, Status.STOPPING_CANCELED)
    assert actor.deliver(CANCEL) == 1
    assert actor.sent == []


def test_graceful_cancel_sends_no_forced_stop() -> None:
    actor = experiment_in(STEP_ERA, Status.ACTIVE)
    actor.deliver(CANCEL)
    assert actor.messages_to("trial#1") == [ExperimentStatusChanged(Status.STOPPING_CANCELED)]


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_deleted_experiment_refuses_every_command_as_not_found(rules: LifecycleRules) -> None:
    actor = experiment_in(rules, Status.DELETED)
    for command in (CANCEL, KILL, PauseRequested()):
        with pytest.raises(CommandRefused, match="experiment 1 was deleted") as refused:
            actor.deliver(command)
        assert refused.value.code == "not_found"


@pytest.mark.parametrize(
    ("rules", "completed", "stopped"), [(LENGTH_ERA, 1.0, 0.5), (STEP_ERA, None, None)]
)
def test_final_progress_depends_on_the_era(
    rules: LifecycleRules, completed: float | None, stopped: float | None
) -> None:
    actor = experiment(rules)
    actor.deliver(TrialEnded(0, Status.COMPLETED, ""))
    assert (actor.state.status, actor.state.progress) == (Status.COMPLETED, completed)
    # 50 of 100 batches were trained before the cancellation.
    actor = experiment(rules)
    actor.deliver(TrialValidationReported(0, LENGTH / 2, 0.5), CANCEL, trial_canceled(0))
    assert (actor.state.status, actor.state.progress) == (Status.CANCELED, stopped)


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ((TrialEnded(0, Status.COMPLETED, ""),), Status.COMPLETED),
        ((TrialEnded(0, Status.ERROR, ExitReason.ERRORED),), Status.ERROR),
        ((CANCEL, trial_canceled(0)), Status.CANCELED),
        ((KILL, trial_canceled(0)), Status.CANCELED),
    ],
)
def test_end_requests_a_collection(
    rules: LifecycleRules, messages: tuple[object, ...], status: Status
) -> None:
    actor = experiment(rules)
    actor.now_ms = 9_000
    actor.deliver(*messages)
    assert (actor.state.status, actor.state.ended_ms) == (status, 9_000)
    # One best and the latest of each trial unless the configuration says otherwise.
    assert collection(actor) == {"generation": 1, "retention": [0, 1, 1], "delete": False}


def test_collection_is_not_requested_before_the_end() -> None:
    actor = experiment(LENGTH_ERA, trials=2)
    actor.deliver(CANCEL, trial_canceled(0))
    assert actor.row("collections", "000000000001").body == b""


def test_stopping_experiment_counts_events_of_the_search() -> None:
    # Two of five trials run. Both end while the experiment stops, and are not replaced.
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(5, concurrent=2)))
    actor.deliver(
        CANCEL, TrialValidationReported(0, 30.0, 0.5), trial_canceled(0), trial_canceled(1)
    )
    tally = actor.state.search.tally
    assert (tally.requested, tally.created, tally.closed, tally.exited) == (2, 2, 2, 2)
    assert (tally.units, tally.open_units) == (30.0, 0.0)
    assert actor.state.trials == 2
