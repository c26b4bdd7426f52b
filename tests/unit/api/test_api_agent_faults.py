"""Faults that an agent reports with a sync call."""

from __future__ import annotations

from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster


def test_reported_fault_closes_the_machine_before_the_reports_count(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.take_work() == ["1.1", "2.1"]
    ended = {"kind": "exited", "code": 1, "reason": "lost", "message": "the machine failed"}
    answer = agent.sync(
        faults=[{"slot": 0, "reason": "Xid 79"}],
        reports=agent.entries("1.1", ended, writer="agent"),
    )
    assert answer.status == 200
    # The failed trial does not start again on the faulty slot.
    run = [entry for entry in agent.sync().json["desired"] if entry["state"] == "run"]
    assert [entry["allocation"] for entry in run] == ["2.1"]
    assert cluster.get("/trials/1").json["restarts"] == 0
    [fault] = cluster.get("/agents").json["items"][0]["faults"]
    assert (fault["slot"], fault["reason"]) == (0, "Xid 79")
    agent.sync(faults=[])
    assert cluster.get("/agents").json["items"][0]["faults"] == []
