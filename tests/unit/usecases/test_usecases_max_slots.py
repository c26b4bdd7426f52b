"""An experiment's max_slots over HTTP: from the configuration, and changed during the run."""

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call


def patch(cluster: Cluster, max_slots: int | None) -> Answer:
    path, content = f"{V1}/experiments/1", {"max_slots": max_slots}
    return call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=content)


def preempted_allocations(agent: Agent) -> list[str]:
    entries = agent.sync().json["desired"]
    return [entry["allocation"] for entry in entries if entry["directives"]["preempt"]]


def test_experiment_gets_at_most_max_slots(cluster: Cluster) -> None:
    cluster.create(CONFIG + "resources: {max_slots: 1}\n")
    cluster.create(CONFIG)
    agent = Agent(cluster)
    # Trial 2 exceeds the limit of experiment 1, so that trial 3 of experiment 2 starts.
    assert agent.take_work() == ["1.1", "3.1"]
    agent.finish("3.1")
    agent.finish("1.1")
    assert sorted(agent.take_work()) == ["2.1", "4.1"]


def test_max_slots_changes_while_experiment_runs(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    assert patch(cluster, 1).json["max_slots"] == 1
    assert preempted_allocations(agent) == ["1.1"]
    exited = {"kind": "exited", "reason": "preempted", "code": 0}
    agent.report("1.1", exited, writer="agent")
    assert agent.take_work() == ["2.1"]
    state = cluster.services.engine.read_state(addresses.pool("default"))
    assert state.wait_reason == "max_slots 1 reached"
    assert patch(cluster, None).json["max_slots"] is None
    assert agent.take_work() == ["2.1", "1.2"]


@pytest.mark.parametrize("section", ["{max_slots: 1, slots_per_trial: 2}", "{max_slots: 0}"])
def test_rejects_max_slots_below_one_trial(cluster: Cluster, section: str) -> None:
    answer = cluster.create(f"{CONFIG}resources: {section}\n")
    assert (answer.status, answer.code) == (422, "invalid")
    (problem,) = answer.json["error"]["details"]
    assert problem["path"] == "resources.max_slots"
    assert "must be at least slots_per_trial" in problem["message"]
    assert problem["hint"] == "no trial could ever start"
