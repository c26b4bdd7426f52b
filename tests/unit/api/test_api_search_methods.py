"""The two routes of a search method: read events, and post operations."""

import asyncio
import threading
import time
from typing import Any

import pytest

from control_plane.access.principals import Role
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, limit_queries
from tests.unit.api.exchange import Answer, call
from tests.unit.searchers.custom_search import (
    close_operation,
    create_operation,
    request_id,
    shutdown_operation,
    validate_after_operation,
)

CUSTOM = CONFIG.replace(
    "{name: random, metric: loss, max_length: {batches: 10}, max_trials: 2}",
    "{name: custom, metric: loss, unit: batches, population: 9}",
)
EVENTS = "/experiments/1/searcher-events"
OPERATIONS = "/experiments/1/searcher-operations"
REPEATED = 3


def begin_search(cluster: Cluster) -> None:
    answer = cluster.create(CUSTOM)
    assert answer.status == 201, answer.body


def post(
    cluster: Cluster, number: int, acknowledged: int, *operations: object, key: str | None = None
) -> Answer:
    body = {"post": number, "acknowledged": acknowledged, "operations": list(operations)}
    return cluster.post(OPERATIONS, body, key)


def read_events(cluster: Cluster) -> list[dict[str, Any]]:
    answer = cluster.get(EVENTS)
    assert answer.status == 200, answer.body
    events: list[dict[str, Any]] = answer.json["events"]
    return events


def test_custom_search_is_driven_from_start_to_end(cluster: Cluster) -> None:
    begin_search(cluster)
    agent = Agent(cluster)
    assert read_events(cluster) == [{"id": 1, "type": "initial_operations"}]
    answer = post(cluster, 1, 1, create_operation(7, {"lr": 0.1}), validate_after_operation(7, 10))
    assert (answer.status, answer.json) == (200, {"post": 1, "acknowledged": 1, "newest": 2})
    [allocation] = agent.take_work()
    assert cluster.get("/trials/1").json["hparams"] == {"lr": 0.1}
    agent.report(allocation, metrics(10, "validation", loss=0.5))
    agent.report(allocation, {"kind": "completed", "length": 10, "metric": 0.5})
    assert read_events(cluster) == [
        {"id": 2, "type": "trial_created", "request_id": request_id(7)},
        {"id": 3, "type": "trial_progress", "request_id": request_id(7), "units": 10.0},
        {
            "id": 4,
            "type": "validation_completed",
            "request_id": request_id(7),
            "length": 10,
            "metric": 0.5,
        },
    ]
    post(cluster, 2, 4, close_operation(7), {"type": "set_searcher_progress", "progress": 0.9})
    assert cluster.get("/experiments/1").json["progress"] == 0.9
    agent.report(allocation, {"kind": "exited", "reason": "completed", "code": 0}, writer="agent")
    assert read_events(cluster) == [{"id": 5, "type": "trial_closed", "request_id": request_id(7)}]
    post(cluster, 3, 5, shutdown_operation())
    answer = cluster.get(EVENTS)
    assert answer.json == {
        "events": [],
        "newest": 5,
        "acknowledged": 5,
        "post": 3,
        "state": "COMPLETED",
        "active": False,
    }
    history = [item["text"] for item in cluster.get("/experiments/1/history").json["items"]]
    assert (
        "the search method asked for 1 create, 1 validate after in post 1 by user-1, having "
        "handled the events up to 1" in history
    )
    replayed = cluster.get("/experiments/1/replay").json["items"]
    assert [item["difference"] for item in replayed] == [None, None]


def test_early_exit_event_has_the_reason(cluster: Cluster) -> None:
    begin_search(cluster)
    agent = Agent(cluster)
    post(cluster, 1, 1, create_operation(7), validate_after_operation(7, 10))
    [allocation] = agent.take_work()
    agent.report(allocation, {"kind": "early_exit", "reason": "INVALID_HP"})
    agent.report(allocation, {"kind": "exited", "reason": "invalid_hp", "code": 0}, writer="agent")
    assert read_events(cluster)[1:] == [
        {
            "id": 3,
            "type": "trial_exited_early",
            "request_id": request_id(7),
            "reason": "INVALID_HP",
        },
        {"id": 4, "type": "trial_closed", "request_id": request_id(7)},
    ]


@pytest.mark.parametrize("key", [None, "the-same"])
def test_repeated_post_returns_the_same_answer_and_has_one_effect(
    cluster: Cluster, key: str | None
) -> None:
    begin_search(cluster)
    answers = [
        post(cluster, 1, 1, create_operation(7), validate_after_operation(7, 10), key=key).json
        for _ in range(REPEATED)
    ]
    assert answers == [{"post": 1, "acknowledged": 1, "newest": 2}] * REPEATED
    assert len(cluster.get("/experiments/1/trials").json["items"]) == 1


def test_post_of_a_second_search_process_is_a_conflict(cluster: Cluster) -> None:
    begin_search(cluster)
    post(cluster, 1, 1, create_operation(7))
    for number, operation in ((1, create_operation(8)), (3, create_operation(8))):
        answer = post(cluster, number, 1, operation)
        assert (answer.status, answer.code) == (409, "conflict")
        assert "nother process drives this search" in answer.json["error"]["message"]


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({}, "post: is required"),
    ({"post": 1}, "acknowledged: is required"),
    ({"post": 0, "acknowledged": 0}, "post: must be greater"),
    ({"post": "1", "acknowledged": 0}, "post: must be a valid integer"),
    ({"post": 1, "acknowledged": -1}, "acknowledged: must be greater"),
    ({"post": 1, "acknowledged": 2}, "acknowledged: got 2; expected at most 1"),
    ({"post": 1, "acknowledged": 0, "operations": {}}, "operations: must be a valid list"),
    ({"post": 1, "acknowledged": 0, "more": 1}, "more: is not a known field"),
    (
        {"post": 1, "acknowledged": 0, "operations": [create_operation(1), 3]},
        "operations[1]: got 3",
    ),
    (
        {"post": 1, "acknowledged": 0, "operations": [close_operation(1)]},
        "operations[0].request_id",
    ),
    (
        {"post": 1, "acknowledged": 0, "operations": [create_operation(1, {"x": float("nan")})]},
        "operations[0].hparams.x: must be a finite number",
    ),
    (
        {"post": 1, "acknowledged": 0, "operations": [create_operation(1, {"x": "\ud800"})]},
        "operations[0].hparams.x: contains a NUL character or half of a surrogate pair",
    ),
    (
        {"post": 1, "acknowledged": 0, "operations": [create_operation(1)] * 13},
        "operations: 13 in one",
    ),
]


@pytest.mark.parametrize(("body", "text"), HOSTILE)
def test_invalid_post_is_refused_and_the_search_continues(
    cluster: Cluster, body: dict[str, Any], text: str
) -> None:
    begin_search(cluster)
    answer = cluster.post(OPERATIONS, body)
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    assert text in answer.json["error"]["message"]
    assert post(cluster, 1, 1, create_operation(7)).status == 200


def test_too_large_post_is_refused(cluster: Cluster) -> None:
    begin_search(cluster)
    answer = post(cluster, 1, 1, create_operation(7, {"x": "y" * 600_000}))
    assert (answer.status, answer.code) == (413, "too_large")


def test_killed_search_is_inactive_and_refuses_posts(cluster: Cluster) -> None:
    begin_search(cluster)
    post(cluster, 1, 1, create_operation(7))
    cluster.post("/experiments/1/kill", {})
    answer = cluster.get(f"{EVENTS}?wait_seconds=60")
    assert (answer.json["active"], answer.json["state"]) == (False, "CANCELED")
    refused = post(cluster, 2, 2, create_operation(8))
    assert (refused.status, refused.code) == (409, "conflict")


@pytest.mark.parametrize("path", [EVENTS, OPERATIONS])
def test_search_method_routes_need_a_user_token(cluster: Cluster, path: str) -> None:
    begin_search(cluster)
    method = "GET" if path == EVENTS else "POST"
    body = {"post": 1, "acknowledged": 1}
    content = None if method == "GET" else body
    assert call(cluster.app, method, V1 + path, content=content).status == 401
    token = TOKENS[Role.AGENT]
    assert call(cluster.app, method, V1 + path, token=token, content=content).status == 403


@pytest.mark.parametrize("query", ["after=-1", "wait_seconds=61", "wait_seconds=nan", "after=x"])
def test_rejects_invalid_event_queries(cluster: Cluster, query: str) -> None:
    begin_search(cluster)
    assert cluster.get(f"{EVENTS}?{query}").status == 422


def test_events_of_other_searchers_are_refused(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    answer = cluster.get(EVENTS)
    assert (answer.status, answer.code) == (409, "conflict")
    assert cluster.get("/experiments/2/searcher-events").status == 404
    assert cluster.post("/experiments/2/searcher-operations", {}).status == 404
    assert cluster.post("/experiments/1/searcher-operations", {}).status == 422


def test_test_run_has_no_search_events(cluster: Cluster) -> None:
    cluster.create(CUSTOM, test_mode=True)
    answer = cluster.get(EVENTS)
    assert "is a test run: it is not driven by a search method" in answer.json["error"]["message"]


def test_events_come_in_pages(cluster: Cluster) -> None:
    cluster = limit_queries(cluster, search_events_max=2)
    begin_search(cluster)
    post(cluster, 1, 0, create_operation(1), create_operation(2))
    assert [event["id"] for event in read_events(cluster)] == [1, 2]
    assert [event["id"] for event in cluster.get(f"{EVENTS}?after=2").json["events"]] == [3]
    assert cluster.get(f"{EVENTS}?after=3").json["events"] == []


def test_events_call_waits_for_the_next_event(cluster: Cluster) -> None:
    begin_search(cluster)
    answers: list[Answer] = []
    waiting = threading.Thread(
        target=lambda: answers.append(cluster.get(f"{EVENTS}?after=1&wait_seconds=30"))
    )
    waiting.start()
    # Usually the call waits by now; a later call gets the same answer.
    waiting.join(0.1)
    post(cluster, 1, 1, create_operation(7))
    waiting.join(ANSWER_SECONDS_MAX)
    assert [event["type"] for event in answers[0].json["events"]] == ["trial_created"]


def test_events_call_returns_empty_after_the_wait(cluster: Cluster) -> None:
    begin_search(cluster)
    began = time.monotonic()
    assert cluster.get(f"{EVENTS}?after=1&wait_seconds=0.2").json["events"] == []
    assert time.monotonic() - began >= 0.2


def test_waiting_callers_of_one_search_do_not_end_each_other(cluster: Cluster) -> None:
    begin_search(cluster)

    async def both() -> list[Answer]:
        path = f"{EVENTS}?after=1&wait_seconds=0.3"
        return await asyncio.gather(*(asyncio.to_thread(cluster.get, path) for _ in range(2)))

    began = time.monotonic()
    asyncio.run(both())
    assert time.monotonic() - began >= 0.3


def test_experiment_shows_the_last_call_of_the_search_method(cluster: Cluster) -> None:
    begin_search(cluster)
    assert cluster.get("/experiments/1").json["search_method"] == {
        "heard_ms": None,
        "events_waiting": 1,
    }
    read_events(cluster)
    cluster.clock.ms += 29_000
    read_events(cluster)
    assert cluster.get("/experiments/1").json["search_method"]["heard_ms"] == NOW_MS
    cluster.clock.ms += 1_000
    post(cluster, 1, 1)
    assert cluster.get("/experiments/1").json["search_method"] == {
        "heard_ms": NOW_MS + 30_000,
        "events_waiting": 0,
    }
