"""The desired state of an agent: entries for allocations in every state."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.agent.actor import AgentState, DesiredAllocation
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.trial import (
    AllocationExited,
    ContainerStateReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    SlotsAssigned,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.state import TrialState
from control_plane.agents.desired_state import (
    BROKEN_GANG_GRACE_MS,
    GRACE_MS,
    TrialSource,
    desired_entries,
    rendezvous_port,
    trial_directives,
)
from control_plane.agents.sessions import Session
from control_plane.agents.spec import spec_builder
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.config.check import check_config
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    experiment_submitted,
    trial_created,
    trial_settings,
)

AGENT = AgentState("a", "default", 1, (), 0, desired=(DesiredAllocation(4, 1, (0, 1)),))


def trial(*messages: object, closed: bool = True) -> TrialState:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(closed=closed), SlotsAssigned(1, (Place("a", (0, 1)),)), *messages)
    assert isinstance(actor.state, TrialState)
    return actor.state


def experiment() -> tuple[ExperimentState, Definition]:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted())
    definition = actor.part("definition")
    assert isinstance(definition, Definition)
    return actor.state, definition


def entries_for(
    state: TrialState | None,
    known: tuple[str, ...] = (),
    session: Session | None = None,
    agent: AgentState = AGENT,
) -> list[dict[str, Any]]:
    trials = TrialSource(
        read_trial=lambda trial_id: state if trial_id == 4 else None,
        read_experiment=lambda experiment_id: experiment() if experiment_id == 1 else None,
        build_spec=lambda experiment, definition, trial: {"cluster_id": "c"},
        read_address=lambda name: f"host-{name}",
    )
    return desired_entries(agent, session or Session(), known, trials)


def kill_entry(allocation: str) -> dict[str, Any]:
    return {
        "allocation": allocation,
        "state": "kill",
        "directives": None,
        "grace_ms": GRACE_MS,
    }


def test_new_allocation_has_spec_and_code() -> None:
    state = trial()
    assert entries_for(state) == [
        {
            "allocation": "4.1",
            "state": "run",
            "directives": trial_directives(state),
            "spec": {
                "cluster_id": "c",
                "allocation_id": "4.1",
                "epoch": 1,
                "slots": [0, 1],
                "agent_id": "a",
                "rank": 0,
                "size": 1,
                "node_rank": 0,
                "nodes": 1,
                "hosts": ["127.0.0.1"],
                # crc32("c") is 112,844,655, which leaves 879 of 1,024: block 4 + 879 of 8 ports.
                "rendezvous_port": 20_480 + 8 * 883 + 1,
            },
            "code": {"sha256": "0" * 64, "path": "/api/v1/model-code/" + "0" * 64},
        }
    ]


def test_known_allocation_has_no_spec() -> None:
    state = trial()
    assert entries_for(state, known=("4.1",)) == [
        {"allocation": "4.1", "state": "run", "directives": trial_directives(state)}
    ]


def test_directives_have_length_and_answers() -> None:
    state = trial()
    assert trial_directives(state) == {
        "revision": 1,
        "length": LENGTH,
        "length_units": LENGTH,
        "closed": True,
        "answered": 0,
        "preempt": None,
    }
    waiting = trial(LengthReached(1, LENGTH, 0.5), WorkAssigned(None, False), closed=False)
    assert trial_directives(waiting) == {
        "revision": 2,
        "length": LENGTH,
        "length_units": LENGTH,
        "closed": False,
        "answered": LENGTH,
        "preempt": None,
    }


def test_preemption_is_a_directive() -> None:
    running = ContainerStateReported(1, "RUNNING")
    state = trial(running, PreemptionRequested(1, "slots are wanted"))
    (entry,) = entries_for(state, known=("4.1",))
    assert entry["state"] == "run"
    assert entry["directives"]["preempt"] == {"deadline_ms": None, "reason": "slots are wanted"}
    assert entry["directives"]["revision"] == 2


def test_killed_allocation_has_kill_entry() -> None:
    state = trial(ExperimentStatusChanged(Status.STOPPING_KILLED))
    (entry,) = entries_for(state, known=("4.1",))
    assert (entry["state"], entry["grace_ms"]) == ("kill", GRACE_MS)
    assert entry["directives"]["preempt"] is None


def test_kill_for_now_has_preempt_directive() -> None:
    # A trial that does not run yet, or a disabled agent: a forced preemption lets the trial save.
    state = trial(PreemptionRequested(1, "agent a was disabled", forced=True))
    (entry,) = entries_for(state, known=("4.1",))
    assert entry["state"] == "kill"
    assert entry["directives"]["preempt"] == {
        "deadline_ms": None,
        "reason": "agent a was disabled",
    }


MOVED_ON = [
    None,
    trial(AllocationExited(1, "completed")),
    trial(AllocationExited(1, "preempted")),
]


@pytest.mark.parametrize("state", MOVED_ON, ids=["no trial", "ended", "another epoch"])
def test_present_allocation_of_ended_trial_is_killed(
    state: TrialState | None,
) -> None:
    assert entries_for(state) == []
    assert entries_for(state, known=("4.1",)) == [kill_entry("4.1")]


@pytest.mark.parametrize("state", MOVED_ON, ids=["no trial", "ended", "another epoch"])
def test_allocation_with_accepted_exit_is_forgotten(state: TrialState | None) -> None:
    (entry,) = entries_for(state, known=("4.1",), session=Session(exited=("4.1",)))
    assert entry["state"] == "forget"


def test_unassigned_allocation_is_killed_or_forgotten() -> None:
    entries = entries_for(
        None,
        known=("9.1", "7.2"),
        session=Session(exited=("9.1",)),
        agent=replace(AGENT, desired=()),
    )
    assert entries == [kill_entry("7.2"), kill_entry("9.1") | {"state": "forget"}]


def test_exited_allocation_runs_until_the_trial_decides() -> None:
    # The exit is still in the trial's mailbox, so the trial has not decided yet.
    (entry,) = entries_for(trial(), known=("4.1",), session=Session(exited=("4.1",)))
    assert entry["state"] == "run"


GANG = DesiredAllocation(4, 1, (0, 1), 1, 2)
PLACES = (Place("a", (0, 1)), Place("b", (0, 1)))


def test_new_allocation_waits_for_stale_allocation() -> None:
    """A lost agent has returned with an old allocation on slots that were assigned again."""
    waiting = {"allocation": "4.1", "state": "wait", "directives": None}
    assert entries_for(trial(), ("9.1",)) == [waiting, kill_entry("9.1")]
    gone = Session(exited=("9.1",))
    entry, forgotten = entries_for(trial(), ("9.1",), gone)
    assert "spec" in entry
    assert forgotten["state"] == "forget"


def gang_on(agent: str, *messages: object) -> list[dict[str, Any]]:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(), *messages)
    return entries_for(actor.state, agent=AgentState(agent, "default", 1, (), 0, desired=(GANG,)))


def test_gang_node_gets_addresses_of_all_nodes() -> None:
    [entry] = gang_on("b", SlotsAssigned(1, PLACES))
    spec = entry["spec"]
    assert (spec["node_rank"], spec["nodes"], spec["rank"], spec["size"]) == (1, 2, 1, 2)
    assert spec["hosts"] == ["host-a", "host-b"]


def test_gang_node_waits_for_other_nodes() -> None:
    assert gang_on("b") == [{"allocation": "4.1", "state": "wait", "directives": None}]


def test_all_nodes_of_a_broken_gang_are_killed() -> None:
    broken = AllocationExited(1, "errored", node_rank=0, nodes=2)
    [entry] = gang_on("b", SlotsAssigned(1, PLACES), broken)
    # A worker that hangs on a second machine is killed within ten seconds of the failure.
    assert (entry["state"], entry["grace_ms"]) == ("kill", BROKEN_GANG_GRACE_MS)
    # The worker may save a checkpoint.
    assert entry["directives"]["preempt"] is not None


def test_gangs_on_one_machine_have_different_ports() -> None:
    near = [f"{trial}.{epoch}" for trial in range(1, 200) for epoch in range(1, 9)]
    ports = {rendezvous_port("cluster", allocation) for allocation in near}
    assert len(ports) == len(near)
    # 20,480 and 1,024 blocks of 8 ports: below 32,768, where systems take ports from by themselves.
    assert min(ports) >= 20_480
    assert max(ports) < 28_672


def test_directives_name_the_unit_epochs() -> None:
    actor = ActorHarness("trial#4")
    epochs = trial_settings(lengths=Lengths("epochs"))
    actor.deliver(trial_created(length=3, of=epochs))
    directives = trial_directives(actor.state)
    assert (directives["length"], directives["length_unit"]) == (3, "epochs")
    assert "length_unit" not in trial_directives(trial())


@pytest.mark.parametrize(
    ("fields", "version", "periods"),
    [
        ("searcher: {name: single, metric: m, max_length: {epochs: 3}}", 2, (0, 0)),
        ("min_validation_period: {epochs: 2}", 2, (2, 0)),
        ("min_checkpoint_period: {epochs: 4}", 2, (0, 4)),
        ("min_checkpoint_period: {epochs: 4}\nrecords_per_epoch: 10", 1, (0, 0)),
        ("", 1, (0, 0)),
    ],
)
def test_spec_with_epochs_has_version_2(
    fields: str, version: int, periods: tuple[int, int]
) -> None:
    searcher = "searcher: {name: single, metric: m, max_length: {batches: 3}}\n"
    text = f"entrypoint: m:T\n{'' if 'searcher' in fields else searcher}{fields}\n"
    config = check_config(text)
    head, definition = experiment()
    stored = replace(definition, config=config.to_json().decode())
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=trial_settings(lengths=config.scale.lengths(config.unit))))
    spec = spec_builder("c", Directory(type="directory", container_path="/c"))(
        head, stored, actor.state
    )
    assert spec["version"] == version
    found = (spec.get("min_validation_epochs", 0), spec.get("min_checkpoint_epochs", 0))
    assert found == periods
