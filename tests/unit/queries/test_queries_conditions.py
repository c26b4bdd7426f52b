"""Conditions of trials and experiments, from stored states."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.lengths import Lengths
from control_plane.actors.records import CheckpointRef, Place, Status, TrialSettings
from control_plane.actors.trial.state import (
    Allocation,
    AllocationState,
    DesiredState,
    TrialState,
)
from control_plane.queries.conditions import (
    END_CONDITIONS,
    EXPERIMENT_CONDITIONS,
    TRIAL_CONDITIONS,
    SearchLengths,
    experiment_condition,
    trial_condition,
)

RUNGS = SearchLengths(has_rungs=True, longest=16)
PLACE = (Place("node", (0,)),)
RUNNING = Allocation("ticket", AllocationState.RUNNING, PLACE)
REACHED: dict[str, Any] = {"length_units": 4, "length": 4, "reached": 4}


def trial(**fields: Any) -> TrialState:
    """Return an active trial that is to train to 4 of at most 16 batches."""
    settings = TrialSettings("default", 1, 5, True, Lengths("batches"), 0)
    state = TrialState(1, 1, 0, {}, 0, settings, 0, Status.ACTIVE, length_units=4, length=4)
    return replace(state, **fields)


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"allocation": RUNNING}, "running"),
        ({"allocation": replace(RUNNING, state=AllocationState.PULLING)}, "starting"),
        ({"allocation": Allocation("ticket")}, "queued"),
        # The request for slots is on its way.
        ({}, "queued"),
        (REACHED, "waiting at a rung"),
        ({**REACHED, "awaits_restart_delay": True}, "waiting to restart"),
        ({"awaits_checkpoint": True}, "waiting for the search"),
        ({"length": None, "length_units": None}, "waiting for the search"),
        ({"allocation": replace(RUNNING, desired_state=DesiredState.PREEMPT)}, "preempted"),
        ({"experiment_status": Status.PAUSED, "allocation": RUNNING}, "pausing"),
        ({"experiment_status": Status.PAUSED}, "paused"),
        ({"experiment_status": Status.STOPPING_CANCELED, "allocation": RUNNING}, "stopping"),
        ({"killed": True, "allocation": RUNNING}, "stopping"),
        ({"stopped": True, "allocation": RUNNING}, "stopping"),
        ({"status": Status.CANCELED}, "canceled"),
        ({"status": Status.ERROR}, "failed"),
        ({"status": Status.COMPLETED, "closed": True, **REACHED}, "stopped by the search"),
        ({"status": Status.COMPLETED, "closed": True, "stopped": True}, "stopped by the search"),
    ],
)
def test_condition_of_a_trial(fields: dict[str, Any], condition: str) -> None:
    assert trial_condition(trial(**fields), RUNGS) == condition


@pytest.mark.parametrize(
    "fields",
    [
        # The last rung.
        {"length_units": 16, "length": 16, "reached": 16},
        # The training code ended before the length, by its own decision.
        {"reached": 2},
        {**REACHED, "early_exit": "USER_REQUESTED_STOP"},
        # The original's training is not part of the copy's length.
        {**REACHED, "inherited_checkpoint": CheckpointRef("uuid", 12, 4, "1/12/1/uuid", "a" * 64)},
    ],
)
def test_completed_trial_is_finished(fields: dict[str, Any]) -> None:
    ended = trial(status=Status.COMPLETED, closed=True, **fields)
    assert trial_condition(ended, RUNGS) == "finished"


def test_search_without_rungs_stops_no_trial() -> None:
    without = SearchLengths()
    assert trial_condition(trial(**REACHED), without) == "waiting for the search"
    ended = trial(status=Status.COMPLETED, closed=True, **REACHED)
    assert trial_condition(ended, without) == "finished"


def test_condition_of_an_active_experiment_follows_its_allocations() -> None:
    active = Status.ACTIVE
    assert experiment_condition(active, running=1, queued=3) == "running"
    assert experiment_condition(active, running=0, queued=3) == "queued"
    assert experiment_condition(active, running=0, queued=0) == "waiting"


def test_each_status_has_a_condition() -> None:
    conditions = {experiment_condition(status, running=0, queued=0) for status in Status}
    assert {*conditions, "running", "queued"} == {*EXPERIMENT_CONDITIONS}
    assert {word for words in END_CONDITIONS.values() for word in words} <= {*TRIAL_CONDITIONS}
