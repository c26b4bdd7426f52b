"""Agents and their slots are disabled and enabled by an admin, over restarts and re-enrolments."""

from pathlib import Path
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.api.auth import Role
from control_plane.dispatch.journal import JOURNAL, read_row
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster, cluster
from tests.unit.api.exchange import Answer, call


def told(served: Cluster, path: str, body: object = None, key: str | None = None) -> Answer:
    """Asked by the admin."""
    headers = [] if key is None else [("idempotency-key", key)]
    token = TOKENS[Role.ADMIN]
    return call(
        served.app, "POST", f"{V1}/agents/{path}", token=token, headers=headers, content=body
    )


def agent_of(served: Cluster, name: str = "node") -> dict[str, Any]:
    found = [item for item in served.get("/agents").json["items"] if item["id"] == name]
    assert len(found) == 1
    return dict(found[0])


def pool(served: Cluster) -> tuple[int, int, int, int]:
    """Slots, free slots, queued, running."""
    (shown,) = served.get("/cluster").json["resource_pools"]
    return shown["slots"], shown["free_slots"], shown["queued"], shown["running"]


def preempted(agent: Agent) -> dict[str, str]:
    """Why each trial of the agent is to leave, by allocation."""
    entries = agent.sync().json["desired"]
    directives = {entry["allocation"]: entry["directives"] for entry in entries}
    return {
        name: given["preempt"]["reason"] for name, given in directives.items() if given["preempt"]
    }


def leave(agent: Agent, allocation: str) -> None:
    exited = {"kind": "exited", "reason": "preempted", "code": 0}
    agent.report(allocation, exited, writer="agent")


def test_an_agent_is_enabled_at_first(served: Cluster) -> None:
    Agent(served)
    shown = agent_of(served)
    assert (shown["enabled"], shown["draining"]) == (True, False)
    assert [slot["enabled"] for slot in shown["slots"]] == [True, True]


def test_a_disabled_agents_trials_leave_with_their_work_and_run_elsewhere(served: Cluster) -> None:
    served.create(CONFIG)
    agent = Agent(served)
    agent.take_work()
    answer = told(served, "node/disable")
    assert answer.status == 200
    assert (answer.json["enabled"], answer.json["draining"]) == (False, False)
    reason = "agent node was disabled"
    assert preempted(agent) == {"1.1": reason, "2.1": reason}
    leave(agent, "1.1")
    leave(agent, "2.1")
    assert pool(served) == (0, 0, 2, 0)
    other = Agent(served, "other")
    assert other.take_work() == ["1.2", "2.2"]
    assert served.get("/trials/1").json["restarts"] == 0


def test_a_draining_agents_trials_finish_and_nothing_follows(served: Cluster) -> None:
    served.create(CONFIG.replace("max_trials: 2", "max_trials: 3"))
    agent = Agent(served)
    agent.take_work()
    answer = told(served, "node/disable", {"drain": True})
    assert (answer.json["enabled"], answer.json["draining"]) == (False, True)
    assert preempted(agent) == {}
    agent.finish("1.1")
    assert pool(served) == (1, 0, 1, 1)
    told(served, "node/enable")
    assert pool(served) == (2, 0, 0, 2)
    shown = agent_of(served)
    assert (shown["enabled"], shown["draining"]) == (True, False)


def test_one_slot_is_disabled_and_enabled(served: Cluster) -> None:
    served.create(CONFIG)
    agent = Agent(served)
    agent.take_work()
    answer = told(served, "node/slots/1/disable")
    assert [slot["enabled"] for slot in answer.json["slots"]] == [True, False]
    assert preempted(agent) == {"2.1": "a slot of agent node was disabled"}
    leave(agent, "2.1")
    assert pool(served) == (1, 0, 1, 1)
    answer = told(served, "node/slots/1/enable")
    assert [slot["enabled"] for slot in answer.json["slots"]] == [True, True]
    assert pool(served) == (2, 0, 0, 2)


def test_it_outlives_a_new_session_a_loss_and_a_restart(served: Cluster, tmp_path: Path) -> None:
    Agent(served)
    told(served, "node/disable", {"drain": True})
    told(served, "node/slots/0/disable")
    Agent(served)
    assert pool(served) == (0, 0, 0, 0)
    served.services.table.close()  # type: ignore[attr-defined]
    again = cluster(tmp_path / "objects")
    shown = agent_of(again)
    assert (shown["enabled"], shown["draining"]) == (False, True)
    assert [slot["enabled"] for slot in shown["slots"]] == [False, True]
    Agent(again)
    assert pool(again) == (0, 0, 0, 0)
    told(again, "node/enable")
    assert pool(again) == (1, 1, 0, 0)


def test_an_experiment_that_fits_disabled_agents_only_waits(served: Cluster) -> None:
    Agent(served)
    told(served, "node/disable")
    config = CONFIG + "resources: {slots_per_trial: 2}\n"
    assert served.create(config).status == 201
    assert pool(served) == (0, 0, 2, 0)
    state = served.services.engine.state(addresses.pool("default"))
    assert state.waits == "there is no agent"
    assert served.create(config.replace("slots_per_trial: 2", "slots_per_trial: 3")).status == 422


def test_a_command_is_carried_out_once(served: Cluster) -> None:
    Agent(served)
    first = told(served, "node/disable", {"drain": True}, key="k1")
    told(served, "node/enable")
    again = told(served, "node/disable", {"drain": True}, key="k1")
    assert (again.status, again.body) == (200, first.body)
    assert agent_of(served)["enabled"]
    assert told(served, "node/disable", {"drain": False}, key="k1").status == 409


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("nobody/disable", None, 404),
        ("nobody/enable", None, 404),
        ("node/slots/7/disable", None, 404),
        ("node/slots/-1/disable", None, 422),
        ("node/slots/x/enable", None, 422),
        ("node/disable", {"drain": "yes"}, 422),
        ("node/disable", {"kill": True}, 422),
        ("a b/disable", None, 422),
    ],
)
def test_senseless_commands_are_refused(
    served: Cluster, path: str, body: object, status: int
) -> None:
    Agent(served)
    answer = told(served, path.replace(" ", "%20"), body)
    assert answer.status == status, answer.body
    assert agent_of(served)["enabled"]


def test_only_an_admin_may(served: Cluster) -> None:
    agent = Agent(served)
    for path in ("disable", "enable", "slots/0/disable", "slots/0/enable"):
        for token in (TOKENS[Role.USER], agent.token, TOKENS[Role.JOIN]):
            answer = call(served.app, "POST", f"{V1}/agents/node/{path}", token=token)
            assert (answer.status, answer.code) == (403, "forbidden"), path


def test_the_journal_says_who_did_it(served: Cluster) -> None:
    Agent(served)
    told(served, "node/disable")
    rows = served.services.table.query("agent#node", JOURNAL, f"{JOURNAL}~").rows
    commands = [read_row(row.body) for row in rows]
    assert [entry.get("by") for entry in commands if "AgentDisable" in repr(entry)] == ["admin-1"]
