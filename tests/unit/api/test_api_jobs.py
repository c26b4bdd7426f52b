"""The job queue over HTTP: order, description of jobs, and changes."""

from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.fleet.records import FleetRow, Market, Offering
from control_plane.fleet.rows import FLEETS, encode_row
from control_plane.state.table import Expect, Key, Put, Unavailable
from simulator.faults.table_faults import InterleavingTable
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.table_decorators import RefusingTable, recorded_table, writes_to

PRIORITY = "scheduler: {type: priority, preemption: true}"
SINGLE = """
name: digits
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


def ask(cluster: Cluster, method: str, path: str, content: Any, key: str = "") -> Answer:
    headers = [("idempotency-key", key)] if key else []
    token = TOKENS[Role.ADMIN]
    return call(cluster.app, method, V1 + path, token=token, headers=headers, content=content)


def configure(cluster: Cluster, pool: str, config: str) -> None:
    assert ask(cluster, "PUT", f"/resource-pools/{pool}", {"config": config}).status == 200


def submit(cluster: Cluster, *overrides: str, config: str = SINGLE) -> str:
    """Submit an experiment, advance the clock by a second, and return the job's UUID."""
    answer = cluster.create(config, overrides=list(overrides))
    assert answer.status == 201, answer.body
    cluster.clock.ms += 1_000
    return str(answer.json["job_id"])


def queue(cluster: Cluster, query: str = "") -> list[Any]:
    items: list[Any] = cluster.get(f"/jobs{query}").json["items"]
    return items


def order(cluster: Cluster) -> list[tuple[int, int | None]]:
    return [(job["experiment_id"], job["jobs_ahead"]) for job in queue(cluster)]


def change(cluster: Cluster, job: str, key: str = "", **operation: Any) -> Answer:
    return ask(cluster, "PATCH", f"/jobs/{job}", operation, key)


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["message"]


def test_queue_shows_running_jobs_and_the_reason_of_waiting_jobs(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    agent = Agent(cluster, slots=1)
    first, second = submit(cluster), submit(cluster, "resources.priority=50")
    agent.take_work()
    running, waiting = queue(cluster)
    assert running == {
        "job_id": first,
        "experiment_id": 1,
        "type": "TYPE_EXPERIMENT",
        "name": "digits",
        "user": "user-1",
        "resource_pool": "default",
        "preferred_pools": [],
        "pool_moved_ms": None,
        "pool_move_reason": "",
        "scheduler": "priority",
        "state": "STATE_SCHEDULED",
        "kind": "experiment",
        "condition": "running",
        "jobs_ahead": 0,
        "priority": 42,
        "weight": 1.0,
        "position": f"{NOW_MS}000",
        "revision": running["revision"],
        "requested_slots": 1,
        "allocated_slots": 1,
        "is_preemptible": True,
        "submitted_ms": NOW_MS,
        "progress": 0.0,
        "metric": "loss",
        "smaller_is_better": True,
        "best_metric": None,
        "waits": "",
        "waits_since_ms": None,
        "expected_start_ms": None,
    }
    assert (waiting["job_id"], waiting["state"], waiting["jobs_ahead"]) == (
        second,
        "STATE_QUEUED",
        1,
    )
    assert (waiting["requested_slots"], waiting["allocated_slots"]) == (1, 0)
    assert "needs 1 slot, 0 free" in waiting["waits"]


def test_waiting_jobs_show_reserved_slots(cluster: Cluster) -> None:
    """The second job needs both slots, the first job uses a slot, and the third job would fit."""
    configure(cluster, "default", "scheduler: {type: round_robin, reserve_after: 5m}")
    Agent(cluster, slots=2)
    submit(cluster)
    submit(cluster, "resources.slots_per_trial=2")
    cluster.clock.ms += 5 * 60_000
    submit(cluster)
    _, gang, small = (job["waits"] for job in queue(cluster))
    assert gang == "needs 2 slots; slots are held for it: 1 of 2"
    assert small == "needs 1 slot, 0 free; 1 slot is held for job 2"


def test_expected_start_follows_the_pace_of_the_running_trial(cluster: Cluster) -> None:
    agent = Agent(cluster, slots=1)
    submit(cluster)
    submit(cluster)
    agent.take_work()
    placed_ms = NOW_MS
    cluster.clock.ms = placed_ms + 8_000
    agent.report("1.1", metrics(4, loss=0.5))
    # 4 of 10 batches took 8 s, so the remaining 6 take 12 s.
    assert queue(cluster)[1]["expected_start_ms"] == placed_ms + 20_000


def test_expected_start_uses_the_progress_of_epoch_trials(
    cluster: Cluster,
) -> None:
    agent, placed_ms = Agent(cluster, slots=1), NOW_MS
    for _ in range(2):
        submit(cluster, config=SINGLE.replace("batches: 10", "epochs: 5"))
    agent.take_work()
    cluster.clock.ms = placed_ms + 8_000
    agent.report("1.1", metrics(14, loss=0.5))
    assert queue(cluster)[1]["expected_start_ms"] is None
    agent.report("1.1", {"kind": "progress", "value": 0.4})
    # 14 steps are 0.4 * 5 = 2 epochs, so 5 are 35 steps: 14 took 8 s, and the remaining 21 take 12
    # s.
    assert queue(cluster)[1]["expected_start_ms"] == placed_ms + 20_000


def test_ended_job_is_neither_listed_nor_found(cluster: Cluster) -> None:
    job = submit(cluster)
    assert order(cluster) == [(1, None)]
    cluster.post("/experiments/1/kill", {})
    assert order(cluster) == []
    assert error_of(change(cluster, job, weight=2.0)) == (404, f"job {job} not found")
    status, text = error_of(change(cluster, "1", weight=2.0))
    assert (status, text) == (404, "job 1 not found: its experiment has ended")


def test_paused_job_is_not_in_the_queue_but_can_be_changed(cluster: Cluster) -> None:
    job = submit(cluster)
    cluster.post("/experiments/1/pause", {})
    assert queue(cluster) == []
    shown = change(cluster, job, weight=3.0).json
    assert (shown["state"], shown["weight"], shown["requested_slots"]) == ("STATE_QUEUED", 3.0, 0)


def test_jobs_are_found_by_prefix_and_experiment(cluster: Cluster) -> None:
    jobs = [submit(cluster) for _ in range(3)]
    for number, job in enumerate(jobs, 1):
        for name in (job, job[:8], job[:8].upper(), str(number)):
            assert cluster.get(f"/jobs/{name}").json["experiment_id"] == number
    assert cluster.get("/jobs/nothing").status == 404


def test_rejects_ambiguous_job_prefix(cluster: Cluster) -> None:
    rows = [Put(Key("job-ids", f"ab{n}"), 1, b"1", Expect.ABSENT) for n in range(2)]
    cluster.services.table.commit(rows)
    assert error_of(cluster.get("/jobs/ab")) == (422, "job_id: several jobs begin with ab")


def test_unknown_pool_is_named(cluster: Cluster) -> None:
    assert error_of(cluster.get("/jobs?resource_pool=x")) == (
        404,
        "Pool x not found; existing pools: default",
    )


def test_pages_list_jobs_once_in_both_orders(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    for _ in range(5):
        submit(cluster)
    for query, expected in (("", [1, 2, 3, 4, 5]), ("&reverse=true", [5, 4, 3, 2, 1])):
        seen, cursor = [], ""
        while cursor is not None:
            page = cluster.get(f"/jobs?limit=2{query}{cursor and f'&cursor={cursor}'}").json
            seen += [job["experiment_id"] for job in page["items"]]
            cursor = page["next_cursor"]
        assert seen == expected


def test_fair_share_jobs_have_a_weight_and_no_position(cluster: Cluster) -> None:
    job, other = submit(cluster), submit(cluster)
    assert order(cluster) == [(1, None), (2, None)]
    status, text = error_of(change(cluster, other, ahead_of=job))
    assert status == 422
    assert text.startswith("unable to perform operation on resource pool with fair_share")
    assert error_of(change(cluster, job, priority=1))[0] == 422
    assert change(cluster, job, weight=2.5).json["weight"] == 2.5


def test_weight_of_priority_jobs_cannot_be_changed(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    status, text = error_of(change(cluster, submit(cluster), weight=2.0))
    assert status == 422
    assert text.startswith("unable to perform operation on resource pool with priority")


def test_moves_and_priorities_follow_the_manual(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    agent = Agent(cluster, slots=1)
    first, second = submit(cluster), submit(cluster)
    assert agent.take_work() == ["1.1"]
    assert change(cluster, second[:8], ahead_of=first[:8]).json["jobs_ahead"] == 0
    # The first job is preempted; the second job gets the slot after the exit.
    agent.report("1.1", {"kind": "exited", "reason": "preempted", "code": 0}, writer="agent")
    assert [entry.partition(".")[0] for entry in agent.take_work()] == ["2"]
    states = [(job["job_id"], job["allocated_slots"]) for job in queue(cluster)]
    assert states == [(second, 1), (first, 0)]
    operations = [{"job_id": job[:8], "priority": 1} for job in (second, first)]
    assert ask(cluster, "PATCH", "/jobs", {"operations": operations}).status == 200
    # A change of priority within a batch keeps the position of the move.
    assert [(job["job_id"], job["priority"]) for job in queue(cluster)] == [(second, 1), (first, 1)]


def test_changed_priority_restores_the_order_of_submission(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    jobs = [submit(cluster) for _ in range(3)]
    change(cluster, jobs[2], ahead_of=jobs[0])
    assert order(cluster) == [(3, 0), (1, 1), (2, 2)]
    # An equal priority changes nothing.
    change(cluster, jobs[2], priority=42)
    assert order(cluster) == [(3, 0), (1, 1), (2, 2)]
    change(cluster, jobs[2], priority=41)
    change(cluster, jobs[2], priority=42)
    assert order(cluster) == [(1, 0), (2, 1), (3, 2)]


def test_moved_job_gets_the_priority_of_the_neighbour(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    high, low, last = (submit(cluster, f"resources.priority={n}") for n in (10, 50, 50))
    assert change(cluster, last, behind_of=high).json["priority"] == 10
    assert order(cluster) == [(1, 0), (3, 1), (2, 2)]
    assert change(cluster, high, behind_of=low).json["priority"] == 50
    assert order(cluster) == [(3, 0), (2, 1), (1, 2)]


def test_moves_to_the_present_place_keep_the_order(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    configure(cluster, "other", PRIORITY)
    jobs = [submit(cluster), submit(cluster), submit(cluster, "resources.resource_pool=other")]
    for anchor in (jobs[0], jobs[2]):
        assert change(cluster, jobs[0], ahead_of=anchor).status == 200
        assert order(cluster) == [(1, 0), (2, 1)]
    assert change(cluster, jobs[1], behind_of=jobs[0]).status == 200
    assert order(cluster) == [(1, 0), (2, 1)]
    assert error_of(change(cluster, jobs[0], ahead_of="nobody"))[0] == 404


def test_job_moves_to_a_different_pool(cluster: Cluster) -> None:
    configure(cluster, "other", PRIORITY)
    agent = Agent(cluster, slots=1)
    job = submit(cluster)
    agent.take_work()
    assert change(cluster, job, resource_pool="other").json["resource_pool"] == "other"
    agent.report("1.1", {"kind": "exited", "reason": "preempted", "code": 0}, writer="agent")
    assert order(cluster) == []
    (moved,) = queue(cluster, "?resource_pool=other")
    assert (moved["job_id"], moved["state"]) == (job, "STATE_QUEUED")
    assert cluster.get("/experiments/1").json["resource_pool"] == "other"


@pytest.mark.parametrize(
    ("pool", "status", "text"),
    [
        ("", 422, "resource pool must be set"),
        ("default", 409, "the job is already in that resource pool"),
        ("nowhere", 422, "resource_pool: resource pool nowhere does not exist"),
    ],
)
def test_rejects_moves_to_invalid_pools(
    cluster: Cluster, pool: str, status: int, text: str
) -> None:
    assert error_of(change(cluster, submit(cluster), resource_pool=pool)) == (status, text)


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({"priority": 0}, "priority must be between 1 and 99"),
        ({"priority": 100}, "priority must be between 1 and 99"),
        ({}, "exactly one of priority, weight"),
        ({"priority": 1, "ahead_of": "1"}, "exactly one of priority, weight"),
    ],
)
def test_rejects_invalid_job_operations(
    cluster: Cluster, operation: dict[str, Any], text: str
) -> None:
    configure(cluster, "default", PRIORITY)
    status, message = error_of(change(cluster, submit(cluster), **operation))
    assert status == 422
    assert text in message


def test_batch_applies_valid_operations_and_joins_errors(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    first, second = submit(cluster), submit(cluster)
    operations = [
        {"job_id": "nobody", "priority": 1},
        {"job_id": second, "priority": 5},
        {"job_id": first, "priority": 100},
    ]
    answer = ask(cluster, "PATCH", "/jobs", {"operations": operations})
    assert error_of(answer) == (
        422,
        "encountered the following errors: job nobody not found,"
        " priority must be between 1 and 99, not 100",
    )
    paths = [detail["path"] for detail in answer.json["error"]["details"]]
    assert paths == ["operations[0]", "operations[2]"]
    assert order(cluster) == [(2, 0), (1, 1)]


def test_single_error_of_a_batch_keeps_the_status(cluster: Cluster) -> None:
    answer = ask(cluster, "PATCH", "/jobs", {"operations": [{"job_id": "nobody", "weight": 1}]})
    assert error_of(answer) == (404, "job nobody not found")


def test_repeated_batch_applies_only_the_remaining_operations(cluster: Cluster) -> None:
    configure(cluster, "other", "{}")
    first, second = submit(cluster), submit(cluster)
    body = {"operations": [{"job_id": job, "resource_pool": "other"} for job in (first, second)]}
    errors = [Unavailable("throttled")]
    cluster.services.engine.table = RefusingTable(
        cluster.services.table, errors, writes_to("experiment#2")
    )
    assert ask(cluster, "PATCH", "/jobs", body, "k").status == 503
    # The first job already moved: a repeated move of this job would be refused.
    with recorded_table(cluster) as table:
        answer = ask(cluster, "PATCH", "/jobs", body, "k")
    assert [job["resource_pool"] for job in answer.json["items"]] == ["other", "other"]
    assert not any(writes_to("experiment#1")(writes) for writes in table.commits)
    other = {"operations": [{"job_id": first, "weight": 2}]}
    assert ask(cluster, "PATCH", "/jobs", other, "k").status == 409


def test_repeated_move_returns_the_first_answer(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    first, second = submit(cluster), submit(cluster)
    answer = change(cluster, second, key="k", ahead_of=first)
    change(cluster, first, ahead_of=second)
    assert change(cluster, second, key="k", ahead_of=first).body == answer.body
    assert order(cluster) == [(1, 0), (2, 1)]


def test_concurrent_moves_in_a_pool_are_serialized(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    jobs = [submit(cluster) for _ in range(3)]

    # Move the third job between the read and the commit of the first move.
    cluster.services.engine.table = InterleavingTable(
        cluster.services.table,
        lambda: change(cluster, jobs[2], ahead_of=jobs[0]),
        writes_to("job-moves"),
    )
    change(cluster, jobs[1], ahead_of=jobs[0])
    # The second move was computed again behind the third job, right ahead of the first.
    assert order(cluster) == [(3, 0), (2, 1), (1, 2)]
    turns = cluster.services.table.get(Key("job-moves", "default"))
    assert turns is not None
    assert turns.revision == 2


def test_weight_and_priority_of_experiments_change_in_any_pool(cluster: Cluster) -> None:
    submit(cluster)
    changed = ask(cluster, "PATCH", "/experiments/1", {"weight": 2, "priority": 7}).json
    assert (changed["weight"], changed["priority"]) == (2.0, 7)


def test_waiting_jobs_show_the_reason_of_the_fleet(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path, providers=frozenset({"local"}))
    configure(cluster, "default", f"{PRIORITY}\nprovider: {{type: local}}")
    agent = Agent(cluster, slots=1)
    submit(cluster)
    submit(cluster)
    agent.take_work()
    fleet = FleetRow("default", waits="the pool has its 3 instances")
    cluster.services.table.commit(
        [Put(Key(FLEETS, "default"), 1, encode_row(fleet), Expect.ABSENT)]
    )
    runs, waits = queue(cluster)
    assert runs["waits"] == ""
    assert waits["waits"] == "needs 1 slot, 0 free; the pool has its 3 instances"


def test_pools_list_offerings_with_prices(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path, providers=frozenset({"local"}))
    assert cluster.get("/resource-pools").json["items"][0]["offerings"] == []
    offered = (Offering("g/a/spot", "g", "a", Market.SPOT, 4, 1.0),)
    fleet = encode_row(FleetRow("default", offered=offered))
    cluster.services.table.commit([Put(Key(FLEETS, "default"), 1, fleet, Expect.ABSENT)])
    (pool,) = cluster.get("/resource-pools").json["items"]
    # A quarter of the price of an instance with four slots.
    assert pool["offerings"] == [
        {
            "offering": "g/a/spot",
            "instance_type": "g",
            "zone": "a",
            "market": "spot",
            "slots": 4,
            "price_per_hour": 1.0,
            "slot_price_per_hour": 0.25,
        }
    ]


def test_waiting_jobs_name_a_draining_pool(cluster: Cluster) -> None:
    submit(cluster, config=CONFIG)
    ask(cluster, "POST", "/resource-pools/default/drain", {})
    (job,) = queue(cluster)
    assert job["waits"] == "pool default is draining"
