"""The timelines of trials over HTTP: runs with machines and prices, waits, bounds and pages."""

import json
from typing import Any

import pytest

from control_plane.actors.messages.trial import AllocationExited, AllocationLost, SlotsAssigned
from control_plane.actors.records import Place
from control_plane.engine.journal import RecordedEntry
from control_plane.queries import trial_timelines
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster

LIST = "/experiments/1/timelines"


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with one slot that runs trial 1 of experiment 1; trial 2 waits."""
    cluster.create(CONFIG)
    agent = Agent(cluster, slots=1)
    agent.take_work()
    return agent


def timelines(cluster: Cluster, query: str = "") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = cluster.get(f"{LIST}{query}").json["items"]
    return items


def report_state(agent: Agent, allocation: str, state: str) -> None:
    agent.report(allocation, {"kind": "container", "state": state}, writer="agent")


def test_trial_without_slots_waits_from_its_creation(cluster: Cluster, agent: Agent) -> None:
    first, second = timelines(cluster)
    [run] = first["runs"]
    assert (run["epoch"], run["places"][0]["agent_id"], run["places"][0]["slots"]) == (
        1,
        "node",
        ["0"],
    )
    # An agent that was started by hand has no instance.
    assert run["places"][0]["price_per_hour"] is None
    assert (run["ended_ms"], run["outcome"]) == (None, "")
    assert second["runs"] == []
    created = second["created_ms"]
    assert second["waits"] == [{"kind": "slots", "from_ms": created, "until_ms": None}]


def test_run_has_the_times_of_its_start_and_end(cluster: Cluster, agent: Agent) -> None:
    placed = cluster.clock.ms
    cluster.clock.ms += 5_000
    report_state(agent, "1.1", "RUNNING")
    cluster.clock.ms += 60_000
    agent.finish("1.1")
    first, second = timelines(cluster)
    [run] = first["runs"]
    assert (run["placed_ms"], run["running_ms"]) == (placed, placed + 5_000)
    assert (run["ended_ms"], run["outcome"]) == (placed + 65_000, "completed")
    # Trial 2 got the slot at the end of trial 1.
    assert [wait["until_ms"] for wait in second["waits"]] == [placed + 65_000]
    assert second["runs"][0]["placed_ms"] == placed + 65_000


def test_preempted_run_has_the_reason_and_the_pause_is_a_wait(
    cluster: Cluster, agent: Agent
) -> None:
    report_state(agent, "1.1", "RUNNING")
    cluster.post("/experiments/1/pause", {})
    paused = cluster.clock.ms
    cluster.clock.ms += 3_000
    preempted = {"kind": "exited", "reason": "preempted", "code": 0}
    agent.report("1.1", preempted, writer="agent")
    cluster.clock.ms += 10_000
    cluster.post("/experiments/1/activate", {})
    first, second = timelines(cluster)
    run = first["runs"][0]
    assert (run["preempted_ms"], run["ended_ms"]) == (paused, paused + 3_000) or (
        run["preempted_ms"] is None
    )
    assert run["outcome"] == "preempted"
    [pause, *_] = [wait for wait in first["waits"] if wait["kind"] == "paused"]
    assert (pause["from_ms"], pause["until_ms"]) == (paused + 3_000, paused + 13_000)
    assert [wait["kind"] for wait in second["waits"]][:2] == ["slots", "paused"]


def test_pages_of_timelines_have_all_trials(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = cluster.get(f"{LIST}?limit=1").json
    assert [one["number"] for one in page["items"]] == [0]
    rest = cluster.get(f"{LIST}?limit=1&cursor={page['next_cursor']}").json
    assert ([one["number"] for one in rest["items"]], rest["next_cursor"]) == ([1], None)
    # A page that has read its entries ends, with a cursor for the rest.
    monkeypatch.setattr(trial_timelines, "SCANNED_MAX", 1)
    short = cluster.get(LIST).json
    assert len(short["items"]) == 1
    assert short["next_cursor"] == page["next_cursor"]


def test_trial_with_a_long_journal_is_cut(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.finish("1.1")
    monkeypatch.setattr(trial_timelines, "ENTRIES_OF_TRIAL_MAX", 1)
    assert [one["is_cut"] for one in timelines(cluster)] == [True, True]


def test_unknown_experiment_has_no_timelines(cluster: Cluster) -> None:
    assert cluster.get("/experiments/9/timelines").code == "not_found"


def entry(now_ms: int, **rows: Any) -> RecordedEntry:
    read = {f"instances#p/{name}": (1, json.dumps(row).encode()) for name, row in rows.items()}
    return RecordedEntry(1, now_ms, (), (), read, {})


def test_price_is_the_share_of_the_slots() -> None:
    offering = {"instance_type": "g5.12xlarge", "slots": 4, "price_per_hour": 6.0}
    builder = trial_timelines._TimelineBuilder(has_work=True)
    places = (Place("i-1", (0,)),)
    assigned = SlotsAssigned(epoch=1, places=places)
    builder.apply(assigned, entry(10, **{"i-1": {"offering": offering}}))
    [place] = builder.runs[0].places
    # One of four slots of a machine for $6.
    assert (place.instance_type, place.price_per_hour) == ("g5.12xlarge", 1.5)


def test_gang_ends_with_its_last_node() -> None:
    builder = trial_timelines._TimelineBuilder(has_work=True)
    places = (Place("a", (0,)), Place("b", (0,)))
    builder.apply(SlotsAssigned(epoch=1, places=places), entry(10))
    builder.apply(AllocationLost(epoch=1, reason="no heartbeat", agent="a"), entry(20))
    assert builder.runs[0].ended_ms is None
    builder.apply(AllocationExited(epoch=1, reason="killed", node_rank=1, nodes=2), entry(30))
    run = builder.runs[0]
    assert (run.ended_ms, run.outcome, run.reason) == (30, "lost", "no heartbeat")
    assert [(wait.kind, wait.from_ms) for wait in builder.waits] == [("slots", 30)]
