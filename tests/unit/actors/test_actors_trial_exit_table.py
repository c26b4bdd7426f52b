"""The end of a trial for every exit reason in every previously requested state.

The rules are those of Determined, in this order. A stopping experiment and a kill of the trial
decide the end, whatever the exit was. Refused hyperparameters and a stop that the code announced
complete the trial. A run that was killed for another reason, or preempted, has not failed.
Otherwise the exit decides: lost machines are no failures, and other failures count as a restart.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    PreemptionRequested,
    SlotsAssigned,
    TrialKillRequested,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

Asked = tuple[object, ...]


class End(NamedTuple):
    """The trial's status after the exit, the reported early exit, and the counts."""

    status: Status
    early_exit: str = ""
    restarts: int = 0
    losses: int = 0


AGAIN = End(Status.ACTIVE)
FAILED = End(Status.ACTIVE, restarts=1)
LOST = End(Status.ACTIVE, losses=1)
COMPLETED = End(Status.COMPLETED)
STOPPED = End(Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
REFUSED = End(Status.COMPLETED, ExitReason.INVALID_HP)
CANCELED = End(Status.CANCELED, ExitReason.USER_CANCELED)
ERROR = End(Status.ERROR, ExitReason.ERRORED)

EXITS: Mapping[str, tuple[object, ...]] = {
    "completed": (AllocationExited(1, "completed"),),
    "stop_requested": (AllocationExited(1, "stop_requested"),),
    "stop_reported": (
        EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP),
        AllocationExited(1, "stop_requested"),
    ),
    "stop_reported, failed": (
        EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP),
        AllocationExited(1, "errored", 139),
    ),
    "refused": (
        EarlyExitReported(1, ExitReason.INVALID_HP),
        AllocationExited(1, "invalid_hp"),
    ),
    "errored": (AllocationExited(1, "errored", 1),),
    "start_failed": (AllocationExited(1, "start_failed"),),
    "killed": (AllocationExited(1, "killed"),),
    "lost": (AllocationExited(1, "lost"),),
    "agent_lost": (AllocationLost(1, "no word from agent a"),),
    "preempted": (AllocationExited(1, "preempted"),),
    "idle": (AllocationExited(1, "idle"),),
}
BY_EXIT: Mapping[str, End] = {
    "completed": COMPLETED,
    "stop_requested": STOPPED,
    "stop_reported": STOPPED,
    "stop_reported, failed": STOPPED,
    "refused": REFUSED,
    "errored": FAILED,
    "start_failed": AGAIN,
    "killed": LOST,
    "lost": LOST,
    "agent_lost": LOST,
    "preempted": AGAIN,
    "idle": AGAIN,
}
# A stopped run has neither failed nor lost the machine; a lost agent is counted.
TOLD = {**BY_EXIT, "errored": AGAIN, "killed": AGAIN, "lost": AGAIN}
# A good exit counts as killed, unless the code has announced a stop.
FORCED = {**TOLD, "stop_requested": AGAIN}
# The search has stopped the trial, so no further run is necessary.
ENDED_BY_SEARCH = {
    name: end._replace(status=Status.COMPLETED) if end.status is Status.ACTIVE else end
    for name, end in TOLD.items()
}

STATES: Mapping[str, tuple[Asked, Mapping[str, End]]] = {
    "nothing": ((), BY_EXIT),
    "pause": ((ExperimentStatusChanged(Status.PAUSED),), TOLD),
    "slots wanted": ((PreemptionRequested(1, "slots are wanted"),), TOLD),
    "agent disabled": ((PreemptionRequested(1, "agent a was disabled", forced=True),), FORCED),
    "search stops it": ((WorkAssigned(None, False, stopped=True),), ENDED_BY_SEARCH),
}
DECIDED: Mapping[str, tuple[Asked, End]] = {
    "experiment completes": ((ExperimentStatusChanged(Status.STOPPING_COMPLETED),), COMPLETED),
    "cancel": ((ExperimentStatusChanged(Status.STOPPING_CANCELED),), CANCELED),
    # The step era: a killed experiment is canceled, and the containers are stopped by force.
    "forced cancel": (
        (ExperimentStatusChanged(Status.STOPPING_CANCELED, forced=True),),
        CANCELED,
    ),
    "kill": ((ExperimentStatusChanged(Status.STOPPING_KILLED),), CANCELED),
    "experiment fails": ((ExperimentStatusChanged(Status.STOPPING_ERROR),), ERROR),
    "kill of the trial": ((TrialKillRequested(),), CANCELED),
    "kill of the trial, then cancel": (
        (TrialKillRequested(), ExperimentStatusChanged(Status.STOPPING_CANCELED)),
        CANCELED,
    ),
    "pause, then kill": (
        (ExperimentStatusChanged(Status.PAUSED), ExperimentStatusChanged(Status.STOPPING_KILLED)),
        CANCELED,
    ),
    # The more severe state decides.
    "kill of the trial, then completion": (
        (TrialKillRequested(), ExperimentStatusChanged(Status.STOPPING_COMPLETED)),
        CANCELED,
    ),
    "kill of the trial, then failure": (
        (TrialKillRequested(), ExperimentStatusChanged(Status.STOPPING_ERROR)),
        ERROR,
    ),
}
CASES = [
    *((asked, name, end) for asked, ends in STATES.values() for name, end in ends.items()),
    *((asked, name, end) for asked, end in DECIDED.values() for name in EXITS),
]
NAMES = [
    *(f"{state}: {name}" for state, (_, ends) in STATES.items() for name in ends),
    *(f"{state}: {name}" for state in DECIDED for name in EXITS),
]


@pytest.mark.parametrize(("asked", "exit_name", "expected"), CASES, ids=NAMES)
def test_exit_ends_trial_by_requested_state(asked: Asked, exit_name: str, expected: End) -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(
        trial_created(closed=True, of=trial_settings(max_restarts=5)),
        SlotsAssigned(1, (Place("a", (0, 1)),)),
        ContainerStateReported(1, "RUNNING"),
    )
    actor.deliver(*asked)
    actor.deliver(*EXITS[exit_name])
    ends = actor.all_messages(TrialEnded)
    if expected.status is Status.ACTIVE:
        assert ends == []
    else:
        [ended] = ends
        assert (ended.status, ended.early_exit) == (expected.status, expected.early_exit)
        assert actor.state.allocation is None
    state = actor.state
    assert state.status is expected.status
    if not any(asked is decided for decided, _ in DECIDED.values()):
        assert (state.restarts, state.losses) == (expected.restarts, expected.losses)
    assert state.restarts == expected.restarts


def test_table_has_every_stopping_status() -> None:
    asked = [message for messages, _ in DECIDED.values() for message in messages]
    taken = {one.status for one in asked if isinstance(one, ExperimentStatusChanged)}
    assert {status for status in Status if status.is_stopping} <= taken
