"""Faults that an agent reports with a sync call."""

from __future__ import annotations

from typing import Any

from control_plane.access.principals import Role
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import call


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


USED = {"slot": None, "reason": "somebody is logged in", "people": "checkpoint"}


def test_use_by_people_is_shown_and_ends(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    assert agent.take_work() == ["1.1", "2.1"]
    agent.sync(faults=[USED, {"slot": 1, "reason": "Xid 79"}])
    [shown] = cluster.get("/agents").json["items"]
    expected = {"reason": "somebody is logged in", "since_ms": cluster.clock.ms}
    assert shown["occupancy"] == {**expected, "running": "checkpoint"}
    assert [fault["slot"] for fault in shown["faults"]] == [1]
    # Both trials are asked to save a checkpoint.
    for trial in (1, 2):
        entry = next(x for x in agent.sync().json["desired"] if x["allocation"] == f"{trial}.1")
        assert entry["directives"]["preempt"] is not None
    agent.sync(faults=[])
    assert cluster.get("/agents").json["items"][0]["occupancy"] is None


def test_enrolment_reports_memory_and_use(cluster: Cluster) -> None:
    slots = [
        {"id": 0, "type": "rocm", "uuid": "GPU-a", "name": "MI300X", "memory_mib": 196608},
        {"id": 1, "type": "mps", "uuid": "mps-m", "name": "Apple M3"},
    ]
    body: dict[str, Any] = {
        "name": "desk",
        "resource_pool": "default",
        "slots": slots,
        "version": "2",
    }
    body["occupancy"] = {"reason": "hours of people", "running": "finish"}
    answer = call(cluster.app, "POST", f"{V1}/agents", token=TOKENS[Role.JOIN], content=body)
    assert answer.status == 200
    [shown] = cluster.get("/agents").json["items"]
    assert [slot["memory_mib"] for slot in shown["slots"]] == [196608, None]
    assert [slot["type"] for slot in shown["slots"]] == ["rocm", "mps"]
    assert shown["occupancy"]["running"] == "finish"
    cluster.create(CONFIG)
    jobs = cluster.get("/jobs").json["items"]
    assert [job["allocated_slots"] for job in jobs] == [0]
