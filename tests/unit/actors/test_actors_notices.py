"""Notice outcomes: reported once for each allocation, and counted."""

from dataclasses import replace

import pytest

from control_plane.actors.messages.experiment import NoticeEnded
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    SlotsAssigned,
)
from control_plane.actors.records import Place
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    experiment_submitted,
    random_plan,
    trial_created,
    trial_settings,
)


def running_trial(nodes: int) -> ActorHarness:
    actor = ActorHarness("trial#4")
    places = tuple(Place(f"agent-{rank}", (0, 1)) for rank in range(nodes))
    actor.deliver(
        trial_created(of=trial_settings(slots=2 * nodes)),
        SlotsAssigned(1, places),
        *(ContainerStateReported(1, "RUNNING", rank, nodes) for rank in range(nodes)),
    )
    return actor


def node_exit(rank: int, nodes: int, outcome: str, *, noticed: bool = True) -> AllocationExited:
    reason = "errored" if outcome == "cut" else "preempted"
    notice = "spot interruption" if noticed else ""
    return AllocationExited(1, reason, None, 0, "", rank, nodes, notice, outcome)


def told_messages(actor: ActorHarness) -> list[NoticeEnded]:
    return actor.all_messages(NoticeEnded)


@pytest.mark.parametrize("outcome", ["saved", "finished", "kept", "cut"])
def test_exit_reports_the_notice_outcome(outcome: str) -> None:
    actor = running_trial(1)
    exited = node_exit(0, 1, outcome)
    actor.deliver(exited)
    [message] = told_messages(actor)
    assert (message.epoch, message.outcome) == (1, outcome)
    # A repeat is of an allocation that is over.
    actor.deliver(exited)
    assert len(told_messages(actor)) == 1


def test_exit_without_a_notice_reports_no_outcome() -> None:
    actor = running_trial(1)
    actor.deliver(node_exit(0, 1, "", noticed=False))
    assert told_messages(actor) == []


@pytest.mark.parametrize("chief_is_first", [True, False])
def test_chief_of_a_gang_reports_the_outcome(chief_is_first: bool) -> None:
    actor = running_trial(2)
    exits = [node_exit(0, 2, "saved", noticed=False), node_exit(1, 2, "cut")]
    first, second = exits if chief_is_first else exits[::-1]
    actor.deliver(first)
    assert told_messages(actor) == []
    actor.deliver(second)
    assert [message.outcome for message in told_messages(actor)] == ["saved"]


def test_loss_of_a_node_keeps_the_outcome_of_the_chief() -> None:
    actor = running_trial(2)
    actor.deliver(node_exit(0, 2, "finished"))
    actor.deliver(AllocationLost(1, "gone", "agent-1"))
    assert [message.outcome for message in told_messages(actor)] == ["finished"]


def test_experiment_counts_outcomes() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(random_plan(1)))
    assert actor.state.notices == {}
    message = NoticeEnded(0, 1, "saved")
    actor.deliver(message, replace(message, outcome="kept"), replace(message, epoch=2))
    assert actor.state.notices == {"saved": 2, "kept": 1}
