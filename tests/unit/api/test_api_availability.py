"""Admins disable and enable agents and slots; the state survives restarts and enrolments."""

from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.engine.journal import JOURNAL, decode_journal_row
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call


def command_agent(
    cluster: Cluster, path: str, body: object = None, key: str | None = None
) -> Answer:
    """Send a command for agents as the admin."""
    headers = [] if key is None else [("idempotency-key", key)]
    token = TOKENS[Role.ADMIN]
    return call(
        cluster.app, "POST", f"{V1}/agents/{path}", token=token, headers=headers, content=body
    )


def agent_of(cluster: Cluster, name: str = "node") -> dict[str, Any]:
    agents = [item for item in cluster.get("/agents").json["items"] if item["id"] == name]
    assert len(agents) == 1
    return dict(agents[0])


def pool(cluster: Cluster) -> tuple[int, int, int, int]:
    """Return the pool's slots, free slots, queued and running requests."""
    (shown,) = cluster.get("/cluster").json["resource_pools"]
    return shown["slots"], shown["free_slots"], shown["queued"], shown["running"]


def preemption_reasons(agent: Agent) -> dict[str, str]:
    """Return the preemption reason of each allocation of the agent that is to be preempted."""
    entries = agent.sync().json["desired"]
    directives = {entry["allocation"]: entry["directives"] for entry in entries}
    return {
        name: given["preempt"]["reason"] for name, given in directives.items() if given["preempt"]
    }


def leave(agent: Agent, allocation: str) -> None:
    exited = {"kind": "exited", "reason": "preempted", "code": 0}
    agent.report(allocation, exited, writer="agent")


def test_new_agent_is_enabled(cluster: Cluster) -> None:
    Agent(cluster)
    shown = agent_of(cluster)
    assert (shown["enabled"], shown["draining"]) == (True, False)
    assert [slot["enabled"] for slot in shown["slots"]] == [True, True]


def test_trials_of_a_disabled_agent_move_to_other_agents(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    answer = command_agent(cluster, "node/disable")
    assert answer.status == 200
    assert (answer.json["enabled"], answer.json["draining"]) == (False, False)
    reason = "agent node was disabled"
    assert preemption_reasons(agent) == {"1.1": reason, "2.1": reason}
    leave(agent, "1.1")
    leave(agent, "2.1")
    assert pool(cluster) == (0, 0, 2, 0)
    other = Agent(cluster, "other")
    assert other.take_work() == ["1.2", "2.2"]
    assert cluster.get("/trials/1").json["restarts"] == 0


def test_draining_agent_finishes_trials_and_starts_no_new_trial(cluster: Cluster) -> None:
    cluster.create(CONFIG.replace("max_trials: 2", "max_trials: 3"))
    agent = Agent(cluster)
    agent.take_work()
    answer = command_agent(cluster, "node/disable", {"drain": True})
    assert (answer.json["enabled"], answer.json["draining"]) == (False, True)
    assert preemption_reasons(agent) == {}
    agent.finish("1.1")
    assert pool(cluster) == (1, 0, 1, 1)
    command_agent(cluster, "node/enable")
    assert pool(cluster) == (2, 0, 0, 2)
    shown = agent_of(cluster)
    assert (shown["enabled"], shown["draining"]) == (True, False)


def test_single_slot_is_disabled_and_enabled(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    answer = command_agent(cluster, "node/slots/1/disable")
    assert [slot["enabled"] for slot in answer.json["slots"]] == [True, False]
    assert preemption_reasons(agent) == {"2.1": "a slot of agent node was disabled"}
    leave(agent, "2.1")
    assert pool(cluster) == (1, 0, 1, 1)
    answer = command_agent(cluster, "node/slots/1/enable")
    assert [slot["enabled"] for slot in answer.json["slots"]] == [True, True]
    assert pool(cluster) == (2, 0, 0, 2)


def test_disabled_state_survives_new_sessions_and_a_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    Agent(cluster)
    command_agent(cluster, "node/disable", {"drain": True})
    command_agent(cluster, "node/slots/0/disable")
    Agent(cluster)
    assert pool(cluster) == (0, 0, 0, 0)
    cluster.services.table.close()  # type: ignore[attr-defined]
    again = build_cluster(tmp_path / "objects")
    shown = agent_of(again)
    assert (shown["enabled"], shown["draining"]) == (False, True)
    assert [slot["enabled"] for slot in shown["slots"]] == [False, True]
    Agent(again)
    assert pool(again) == (0, 0, 0, 0)
    command_agent(again, "node/enable")
    assert pool(again) == (1, 1, 0, 0)


def test_experiment_waits_if_only_disabled_agents_fit(cluster: Cluster) -> None:
    Agent(cluster)
    command_agent(cluster, "node/disable")
    config = CONFIG + "resources: {slots_per_trial: 2}\n"
    assert cluster.create(config).status == 201
    assert pool(cluster) == (0, 0, 2, 0)
    state = cluster.services.engine.read_state(addresses.pool("default"))
    assert state.wait_reason == "there is no agent"
    assert cluster.create(config.replace("slots_per_trial: 2", "slots_per_trial: 3")).status == 422


def test_repeated_agent_command_has_one_effect(cluster: Cluster) -> None:
    Agent(cluster)
    first = command_agent(cluster, "node/disable", {"drain": True}, key="k1")
    command_agent(cluster, "node/enable")
    again = command_agent(cluster, "node/disable", {"drain": True}, key="k1")
    assert (again.status, again.body) == (200, first.body)
    assert agent_of(cluster)["enabled"]
    assert command_agent(cluster, "node/disable", {"drain": False}, key="k1").status == 409


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
def test_rejects_malformed_agent_commands(
    cluster: Cluster, path: str, body: object, status: int
) -> None:
    Agent(cluster)
    answer = command_agent(cluster, path.replace(" ", "%20"), body)
    assert answer.status == status, answer.body
    assert agent_of(cluster)["enabled"]


def test_only_admins_disable_and_enable_agents(cluster: Cluster) -> None:
    agent = Agent(cluster)
    for path in ("disable", "enable", "slots/0/disable", "slots/0/enable"):
        for token in (TOKENS[Role.USER], agent.token, TOKENS[Role.JOIN]):
            answer = call(cluster.app, "POST", f"{V1}/agents/node/{path}", token=token)
            assert (answer.status, answer.code) == (403, "forbidden"), path


def test_journal_records_the_author_of_agent_commands(cluster: Cluster) -> None:
    Agent(cluster)
    command_agent(cluster, "node/disable")
    rows = cluster.services.table.query("agent#node", JOURNAL, f"{JOURNAL}~").rows
    commands = [decode_journal_row(row.body) for row in rows]
    assert [entry.get("by") for entry in commands if "AgentDisable" in repr(entry)] == ["admin-1"]
