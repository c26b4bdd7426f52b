"""An experiment's max_slots over HTTP: from its configuration, and changed while it runs."""

import pytest

from control_plane.actors import addresses
from control_plane.api.auth import Role
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call


def patch(served: Cluster, max_slots: int | None) -> Answer:
    path, content = f"{V1}/experiments/1", {"max_slots": max_slots}
    return call(served.app, "PATCH", path, token=TOKENS[Role.USER], content=content)


def preempted(agent: Agent) -> list[str]:
    entries = agent.sync().json["desired"]
    return [entry["allocation"] for entry in entries if entry["directives"]["preempt"]]


def test_an_experiment_has_no_more_slots_than_it_may(served: Cluster) -> None:
    served.create(CONFIG + "resources: {max_slots: 1}\n")
    served.create(CONFIG)
    agent = Agent(served)
    # The first experiment's second trial lets the second experiment pass.
    assert agent.take_work() == ["1.1", "65.1"]
    agent.finish("65.1")
    agent.finish("1.1")
    assert sorted(agent.take_work()) == ["2.1", "66.1"]


def test_a_limit_is_changed_while_the_experiment_runs(served: Cluster) -> None:
    served.create(CONFIG)
    agent = Agent(served)
    agent.take_work()
    assert patch(served, 1).json["max_slots"] == 1
    assert preempted(agent) == ["1.1"]
    exited = {"kind": "exited", "reason": "preempted", "code": 0}
    agent.report("1.1", exited, writer="agent")
    assert agent.take_work() == ["2.1"]
    state = served.services.engine.state(addresses.pool("default"))
    assert state.waits == "max_slots 1 reached"
    assert patch(served, None).json["max_slots"] is None
    assert agent.take_work() == ["2.1", "1.2"]


@pytest.mark.parametrize("section", ["{max_slots: 1, slots_per_trial: 2}", "{max_slots: 0}"])
def test_a_limit_below_one_trial_is_an_error_of_the_configuration(
    served: Cluster, section: str
) -> None:
    answer = served.create(f"{CONFIG}resources: {section}\n")
    assert (answer.status, answer.code) == (422, "invalid")
    (problem,) = answer.json["error"]["details"]
    assert problem["path"] == "resources.max_slots"
    assert "must be at least slots_per_trial" in problem["message"]
    assert problem["hint"] == "no trial could ever start"
