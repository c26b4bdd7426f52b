"""The end of an experiment's idle trial, which the agent has ended."""

from __future__ import annotations

import pytest

from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.trial import (
    IDLE_TIMEOUT,
    AllocationExited,
    ContainerStateReported,
    ExperimentStatusChanged,
    SlotsAssigned,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.state import DesiredState
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

IDLE = "it was idle for 2.0 h (idle_timeout)"


def running(nodes: int = 1) -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=8, of=trial_settings(max_restarts=5, slots=nodes)))
    places = tuple(Place(f"agent-{rank}", (0,)) for rank in range(nodes))
    actor.deliver(SlotsAssigned(1, places), ContainerStateReported(1, "RUNNING"))
    return actor


def idle_exit(node_rank: int = 0, nodes: int = 1) -> AllocationExited:
    return AllocationExited(
        1, "idle", -15, message=IDLE, limit=IDLE_TIMEOUT, node_rank=node_rank, nodes=nodes
    )


def test_idle_trial_is_canceled_with_the_reason() -> None:
    actor = running()
    actor.deliver(idle_exit())
    assert actor.state.status is Status.CANCELED
    assert actor.state.allocation is None
    ended = actor.messages_to("experiment#1")[-1]
    assert isinstance(ended, TrialEnded)
    assert ended.early_exit == ExitReason.USER_CANCELED
    assert ended.message == f"trial {actor.state.trial_id} was canceled: {IDLE}"


def test_run_without_work_starts_again() -> None:
    # The harness itself reports the reason `idle` without a limit.
    actor = running()
    actor.deliver(AllocationExited(1, "idle", 0))
    assert actor.state.status is Status.ACTIVE


@pytest.mark.parametrize(
    ("status", "after"),
    [(Status.PAUSED, Status.ACTIVE), (Status.STOPPING_CANCELED, Status.CANCELED)],
)
def test_request_of_the_cluster_decides_before_the_limit(status: Status, after: Status) -> None:
    actor = running()
    actor.deliver(ExperimentStatusChanged(status), idle_exit())
    assert actor.state.status is after


def test_idle_first_node_stops_the_other_nodes() -> None:
    actor = running(nodes=2)
    actor.deliver(idle_exit(nodes=2))
    assert actor.state.allocation.desired_state is DesiredState.KILL
    actor.deliver(AllocationExited(1, "killed", -9, node_rank=1, nodes=2))
    assert actor.state.status is Status.CANCELED
    assert actor.state.message.endswith(IDLE)
