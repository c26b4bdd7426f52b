"""The replacement of a run: the begin, the phases, and the rows at the first step."""

import json

import pytest

from control_plane.actors.messages.trial import (
    FIRST_STEP,
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    ExperimentStatusChanged,
    PreemptionRequested,
    RestartDue,
    SlotsAssigned,
    TrialMoved,
    ValidationReported,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.replacement import ReplacementRecord, decode_replacement
from control_plane.actors.step import ObservedRow
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import checkpoint_reported, trial_created

BEGUN_MS = 100_000
POOL_ROWS = "replacements#default"
EXPERIMENT = "experiment#1"


def running_trial(*agents: str) -> ActorHarness:
    """Return a trial whose first run has trained 40 batches and has a checkpoint."""
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created())
    assign(actor, *(agents or ("a",)), at_ms=2_000)
    actor.deliver(ContainerStateReported(1, "RUNNING"), checkpoint_reported(40))
    actor.now_ms = BEGUN_MS
    return actor


def assign(actor: ActorHarness, *agents: str, at_ms: int) -> None:
    actor.now_ms = at_ms
    places = tuple(Place(agent, (0, 1)) for agent in agents)
    actor.deliver(SlotsAssigned(actor.state.epoch, places))


def report(actor: ActorHarness, state: str, at_ms: int, **durations: int) -> None:
    actor.now_ms = at_ms
    actor.deliver(ContainerStateReported(actor.state.epoch, state, durations=durations))


def end_with_notice(actor: ActorHarness, at_ms: int, age_ms: int) -> None:
    actor.now_ms = at_ms
    epoch = actor.state.epoch
    actor.deliver(AllocationExited(epoch, "preempted", notice="taken away", notice_age_ms=age_ms))


def launch(actor: ActorHarness, agent: str, launched_ms: int) -> None:
    row = {"id": agent, "launched_ms": launched_ms, "offering": {"slots": 2}}
    actor.rows["instances#default", agent] = ObservedRow(1, json.dumps(row).encode())


def records(actor: ActorHarness) -> list[ReplacementRecord]:
    """Return the rows of the pool. The trial and the experiment must have equal rows."""
    pool = [row.body for (partition, _), row in actor.rows.items() if partition == POOL_ROWS]
    for owner in ("trial#4", EXPERIMENT):
        rows = [
            row.body
            for (partition, sort), row in actor.rows.items()
            if partition == owner and sort.startswith("B#")
        ]
        assert sorted(pool) == sorted(rows)
    return [decode_replacement(body) for body in pool]


def test_notice_to_first_step_on_a_new_machine() -> None:
    actor = running_trial()
    # The notice came 3 s before the exit. The machine was launched 1 s after the notice.
    end_with_notice(actor, BEGUN_MS + 3_000, 3_000)
    launch(actor, "b", BEGUN_MS + 1_000)
    assign(actor, "b", at_ms=BEGUN_MS + 50_000)
    # At 60 s: the kernel started 35 s ago, at 25 s, and the agent enrolled 11 s ago, at 49 s.
    report(
        actor,
        "RUNNING",
        BEGUN_MS + 60_000,
        machine=35_000,
        agent=11_000,
        code=200,
        image=6_000,
        packages=1_500,
    )
    report(actor, FIRST_STEP, BEGUN_MS + 80_000, restore=7_000, first_step=4_000)
    (record,) = records(actor)
    assert record.phases == {
        "checkpoint": 3_000,
        # From the enrolment to the assignment. The launch had begun before the exit.
        "queue": 1_000,
        # From the exit at 3 s to the start of the kernel at 25 s.
        "launch": 22_000,
        "boot": 24_000,
        "code": 200,
        "image": 6_000,
        "packages": 1_500,
        # The rest of 30 s from the assignment.
        "start": 30_000 - 200 - 6_000 - 1_500 - 7_000 - 4_000,
        "restore": 7_000,
        "first_step": 4_000,
    }
    assert (record.begun_ms, record.ended_ms) == (BEGUN_MS, BEGUN_MS + 80_000)
    assert (record.cause, record.reason, record.attempts) == ("notice", "taken away", 0)
    assert (record.from_epoch, record.epoch) == (1, 2)
    assert (record.from_agent, record.agents) == ("a", ("b",))
    assert actor.state.replacement is None


def test_loss_begins_with_the_last_contact() -> None:
    actor = running_trial()
    actor.now_ms = BEGUN_MS + 30_000
    actor.deliver(AllocationLost(1, "agent a was lost", "a", BEGUN_MS))
    assign(actor, "b", at_ms=BEGUN_MS + 31_000)
    report(actor, "RUNNING", BEGUN_MS + 32_000, machine=10**9, agent=10**8, code=0, packages=0)
    report(actor, FIRST_STEP, BEGUN_MS + 33_000, restore=500, first_step=100)
    (record,) = records(actor)
    assert record.cause == "loss"
    # The agent enrolled long before, so that no machine was launched.
    assert record.phases == {
        "detection": 30_000,
        "queue": 1_000,
        "code": 0,
        "packages": 0,
        "start": 1_400,
        "restore": 500,
        "first_step": 100,
    }


def test_failure_of_an_early_pull_belongs_to_the_run() -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS + 3_000, 3_000)
    for agent in ("b", "c"):
        # The first replacing run ends before its first step, and its failure is dropped.
        assign(actor, agent, at_ms=BEGUN_MS + 4_000)
        failure = f"no login on {agent}"
        reported = ContainerStateReported(
            actor.state.epoch, "RUNNING", early_pull_failure=failure if agent == "b" else ""
        )
        actor.deliver(reported)
        assert actor.state.replacement.early_pull_failure == (failure if agent == "b" else "")
        if agent == "b":
            end_with_notice(actor, BEGUN_MS + 5_000, 0)
    report(actor, FIRST_STEP, BEGUN_MS + 9_000)
    (record,) = records(actor)
    assert record.early_pull_failure == ""


def test_failure_of_an_early_pull_is_recorded() -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS + 3_000, 3_000)
    assign(actor, "b", at_ms=BEGUN_MS + 4_000)
    actor.deliver(ContainerStateReported(2, "RUNNING", early_pull_failure="no login"))
    report(actor, FIRST_STEP, BEGUN_MS + 9_000)
    (record,) = records(actor)
    assert record.early_pull_failure == "no login"


def test_preemption_begins_with_the_request() -> None:
    actor = running_trial()
    actor.deliver(PreemptionRequested(1, "a job of higher priority"))
    actor.now_ms = BEGUN_MS + 2_000
    actor.deliver(AllocationExited(1, "preempted"))
    assign(actor, "a", at_ms=BEGUN_MS + 9_000)
    report(actor, FIRST_STEP, BEGUN_MS + 10_000)
    (record,) = records(actor)
    assert (record.cause, record.reason) == ("preemption", "a job of higher priority")
    # Nothing was reported, so that the run is one phase.
    assert record.phases == {"checkpoint": 2_000, "queue": 7_000, "start": 1_000}


def test_move_to_another_pool_counts_for_the_new_pool() -> None:
    actor = running_trial()
    actor.deliver(TrialMoved("other"))
    actor.deliver(AllocationExited(1, "preempted"))
    assign(actor, "a", at_ms=BEGUN_MS + 1_000)
    report(actor, FIRST_STEP, BEGUN_MS + 2_000)
    assert [sort for pool, sort in actor.rows if pool == "replacements#other"]


def test_runs_without_a_step_are_retries() -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS, 0)
    assign(actor, "b", at_ms=BEGUN_MS + 5_000)
    report(actor, "RUNNING", BEGUN_MS + 6_000, code=900)
    end_with_notice(actor, BEGUN_MS + 8_000, 1_000)
    assign(actor, "c", at_ms=BEGUN_MS + 9_000)
    report(actor, FIRST_STEP, BEGUN_MS + 10_000)
    (record,) = records(actor)
    assert (record.attempts, record.from_epoch, record.epoch) == (1, 1, 3)
    assert record.phases == {"retries": 8_000, "queue": 1_000, "start": 1_000}


def test_failed_start_is_a_retry_and_its_delay_waits() -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS, 0)
    assign(actor, "b", at_ms=BEGUN_MS + 1_000)
    actor.now_ms = BEGUN_MS + 3_000
    actor.deliver(AllocationExited(2, "start_failed", message="no disk"))
    actor.now_ms = BEGUN_MS + 4_000
    actor.deliver(RestartDue(2))
    assign(actor, "c", at_ms=BEGUN_MS + 6_000)
    report(actor, FIRST_STEP, BEGUN_MS + 7_000)
    (record,) = records(actor)
    # The delay of 1 s and the wait of 2 s follow the failed start.
    assert record.phases == {"retries": 3_000, "queue": 3_000, "start": 1_000}


def test_request_that_moves_while_it_waits_is_no_retry() -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS, 0)
    actor.now_ms = BEGUN_MS + 5_000
    actor.deliver(TrialMoved("other"))
    actor.deliver(TrialMoved("default"))
    assign(actor, "b", at_ms=BEGUN_MS + 6_000)
    report(actor, FIRST_STEP, BEGUN_MS + 7_000)
    (record,) = records(actor)
    assert record.attempts == 0
    assert record.phases == {"queue": 6_000, "start": 1_000}


@pytest.mark.parametrize("epochs", [1, 2])
def test_pause_drops_the_replacement(epochs: int) -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS, 0)
    if epochs == 2:
        assign(actor, "b", at_ms=BEGUN_MS + 1_000)
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    if epochs == 2:
        actor.deliver(AllocationExited(2, "killed"))
    actor.deliver(ExperimentStatusChanged(Status.ACTIVE))
    assign(actor, "c", at_ms=BEGUN_MS + 90_000)
    report(actor, FIRST_STEP, BEGUN_MS + 91_000)
    assert actor.state.replacement is None
    assert records(actor) == []


def test_paused_run_begins_no_replacement() -> None:
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    actor.deliver(AllocationExited(1, "preempted"))
    actor.deliver(ExperimentStatusChanged(Status.ACTIVE))
    assert actor.state.replacement is None


@pytest.mark.parametrize("reason", ["errored", "idle"])
def test_other_ends_begin_no_replacement(reason: str) -> None:
    actor = running_trial()
    actor.deliver(AllocationExited(1, reason))
    assert actor.state.replacement is None


def test_end_of_the_trial_drops_the_replacement() -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS, 0)
    actor.deliver(ExperimentStatusChanged(Status.STOPPING_CANCELED))
    assert (actor.state.status, actor.state.replacement) == (Status.CANCELED, None)


def test_report_of_training_ends_the_replacement_of_an_older_agent() -> None:
    actor = running_trial()
    actor.deliver(AllocationExited(1, "preempted", notice="taken away"))
    assign(actor, "b", at_ms=BEGUN_MS + 1_000)
    report(actor, "RUNNING", BEGUN_MS + 2_000)
    # A validation at the batch of the checkpoint is no step.
    actor.deliver(ValidationReported(2, 40, 0.5))
    assert records(actor) == []
    actor.now_ms = BEGUN_MS + 60_000
    actor.deliver(ValidationReported(2, 60, 0.5))
    (record,) = records(actor)
    assert not record.has_first_step
    # An older agent sends no age of the notice, so that the begin is the exit.
    assert record.phases == {"queue": 1_000, "start": 59_000}


def test_repeated_first_step_writes_nothing() -> None:
    actor = running_trial()
    end_with_notice(actor, BEGUN_MS, 0)
    assign(actor, "b", at_ms=BEGUN_MS + 1_000)
    report(actor, FIRST_STEP, BEGUN_MS + 2_000)
    report(actor, FIRST_STEP, BEGUN_MS + 3_000)
    assert len(records(actor)) == 1


def test_gang_counts_the_slowest_node() -> None:
    actor = running_trial("a", "b")
    for rank in (0, 1):
        actor.deliver(
            AllocationExited(
                1, "preempted", node_rank=rank, nodes=2, notice="taken away", notice_age_ms=2_000
            )
        )
        actor.now_ms += 1_000
    launch(actor, "c", BEGUN_MS + 2_000)
    launch(actor, "d", BEGUN_MS + 3_000)
    assign(actor, "c", "d", at_ms=BEGUN_MS + 40_000)
    actor.now_ms = BEGUN_MS + 50_000
    starts = (
        {"machine": 40_000, "agent": 30_000, "code": 100},
        {"machine": 30_000, "agent": 10_000, "code": 900},
    )
    for rank, durations in enumerate(starts):
        actor.deliver(ContainerStateReported(2, "RUNNING", rank, 2, durations))
    report(actor, FIRST_STEP, BEGUN_MS + 60_000)
    (record,) = records(actor)
    # The first node's notice came at -2 s, and the second node exited at 1 s. The machine of the
    # second node was launched at 3 s, its kernel started at 20 s, and its agent enrolled at 40 s.
    assert record.phases == {
        "checkpoint": 3_000,
        "queue": 2_000,
        "launch": 17_000,
        "boot": 20_000,
        "code": 900,
        "start": 19_100,
    }
    assert (record.from_agent, record.agents) == ("", ("c", "d"))


def test_failed_gang_is_no_replacement() -> None:
    actor = running_trial("a", "b")
    actor.deliver(AllocationExited(1, "errored", node_rank=0, nodes=2))
    actor.deliver(AllocationExited(1, "killed", node_rank=1, nodes=2))
    assert actor.state.restarts == 1
    assert actor.state.replacement is None
