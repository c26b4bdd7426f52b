"""Failures that repeat on other machines end the trial before `max_restarts`."""

from __future__ import annotations

import pytest

from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.trial import (
    AllocationExited,
    ContainerStateReported,
    SlotsAssigned,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.repeated_failures import FAILURES_KEPT
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import checkpoint_reported, trial_created, trial_settings

SAME, OTHER = "0123456789abcdef", "fedcba9876543210"


class FailingTrial:
    """A trial whose runs fail on chosen agents."""

    def __init__(self) -> None:
        self.actor = ActorHarness("trial#4")
        settings = trial_settings(max_restarts=20, slots=1)
        self.actor.deliver(trial_created(length=8, of=settings))

    @property
    def epoch(self) -> int:
        epoch: int = self.actor.state.epoch
        return epoch

    def start(self, agent: str) -> None:
        self.actor.deliver(
            SlotsAssigned(self.epoch, (Place(agent, (0,)),)),
            ContainerStateReported(self.epoch, "RUNNING"),
        )

    def fail(self, agent: str, fingerprint: str) -> None:
        self.start(agent)
        self.actor.deliver(
            AllocationExited(
                self.epoch,
                "errored",
                1,
                message="ValueError: 12",
                fingerprint=fingerprint,
            )
        )

    @property
    def status(self) -> Status:
        status: Status = self.actor.state.status
        return status


def test_alike_failures_on_two_machines_end_the_trial() -> None:
    trial = FailingTrial()
    trial.fail("a", SAME)
    assert not trial.status.is_final
    trial.fail("b", SAME)
    assert trial.status is Status.ERROR
    reason = "it failed alike on agents a and b after 0 batches"
    ended = trial.actor.messages_to("experiment#1")[-1]
    assert isinstance(ended, TrialEnded)
    assert ended.message == f"no restart: {reason}\nValueError: 12"
    assert trial.actor.state.restarts == 2


@pytest.mark.parametrize(
    ("agent", "fingerprint"), [("a", SAME), ("b", OTHER), ("b", "")], ids=["agent", "place", "none"]
)
def test_other_failures_use_up_restarts(agent: str, fingerprint: str) -> None:
    trial = FailingTrial()
    for _ in range(3):
        trial.fail("a", SAME)
        trial.fail(agent, fingerprint)
    assert (trial.status, trial.actor.state.restarts) == (Status.ACTIVE, 6)


def test_another_failure_in_between_changes_nothing() -> None:
    trial = FailingTrial()
    trial.fail("a", SAME)
    trial.fail("c", OTHER)
    trial.fail("b", SAME)
    assert trial.status is Status.ERROR


def test_checkpoint_in_between_is_progress() -> None:
    trial = FailingTrial()
    trial.fail("a", SAME)
    trial.start("b")
    trial.actor.deliver(checkpoint_reported(4, epoch=trial.epoch))
    trial.actor.deliver(AllocationExited(trial.epoch, "errored", 1, fingerprint=SAME))
    assert trial.status is Status.ACTIVE
    assert [failure.agent for failure in trial.actor.state.recent_failures] == ["b"]


def test_trial_that_fills_disk_after_disk_fails() -> None:
    trial = FailingTrial()
    for number in range(3):
        trial.start(f"agent-{number}")
        text = f"the machine failed: the disk of /work-{number} is full"
        trial.actor.deliver(AllocationExited(trial.epoch, "lost", 1, message=text))
    state = trial.actor.state
    assert (state.losses, state.restarts) == (2, 1)


def test_number_of_stored_failures_is_bounded() -> None:
    trial = FailingTrial()
    for number in range(FAILURES_KEPT + 3):
        trial.fail("a", f"{number:016x}")
    assert len(trial.actor.state.recent_failures) == FAILURES_KEPT
