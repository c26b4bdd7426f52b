"""The table of experiments: filters as text, columns of values, orders by columns, best curves."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from control_plane.actors.experiment.values import VALUES
from control_plane.state.table import Delete, Expect, Key
from tests.unit.api.agent_side import Agent, metrics
from tests.unit.api.cluster import Cluster, limit_queries
from tests.unit.api.table_decorators import recorded_table

CONFIG = """
name: NAME
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
hyperparameters:
  lr: LR
  optimizer: {name: adam}
  layers: [3, 3]
"""
SEARCH = """
name: search
entrypoint: python train.py
searcher: {name: random, metric: loss, max_length: {batches: 10}, max_trials: 2}
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
  width: {type: int, minval: 8, maxval: 64}
  act: {type: categorical, vals: [relu, gelu]}
"""


def create(cluster: Cluster, name: str = "one", lr: float = 0.1) -> int:
    answer = cluster.create(CONFIG.replace("NAME", name).replace("LR", str(lr)), paused=True)
    assert answer.status == 201, answer.body
    return int(answer.json["id"])


def run(cluster: Cluster, agent: Agent, number: int, *, end: bool, **values: float) -> None:
    """Run an experiment up to a validation with these values, and to the end if `end` is true."""
    assert cluster.post(f"/experiments/{number}/activate", {}).status == 200
    (allocation,) = set(agent.take_work()) - set(agent.known[:-1])
    agent.report(allocation, metrics(10, "validation", **values))
    if end:
        agent.finish(allocation)
        agent.known.remove(allocation)


def ask(cluster: Cluster, **query: Any) -> Mapping[str, Any]:
    answer = cluster.get(f"/experiments?{urlencode(query, doseq=True)}")
    assert answer.status == 200, answer.body
    content: Mapping[str, Any] = answer.json
    return content


def ids(cluster: Cluster, **query: Any) -> list[int]:
    return [item["id"] for item in ask(cluster, **query)["items"]]


@pytest.fixture
def ran(cluster: Cluster) -> Cluster:
    """Return a cluster with an ended, a running and a waiting experiment, and a waiting search."""
    agent = Agent(cluster, slots=1)
    for name, lr in (("ended", 0.1), ("running", 0.01), ("waiting", 0.001)):
        create(cluster, name, lr)
    assert cluster.create(SEARCH, paused=True).status == 201
    run(cluster, agent, 1, end=True, loss=0.5, accuracy=0.9)
    run(cluster, agent, 2, end=False, loss=0.25, accuracy=0.7)
    return cluster


def test_filter_text_selects_experiments(ran: Cluster) -> None:
    assert ids(ran, filter="state:finished") == [1]
    assert ids(ran, filter="metric:loss<0.3") == [2]
    assert ids(ran, filter="metric:accuracy>0.6") == [2, 1]
    assert ids(ran, filter="lr>=0.01 -state:finished user:me") == [4, 2]
    assert ids(ran, filter="best<1", sort="metric", order="asc") == [2, 1]
    assert ids(ran, filter="optimizer.name=adam act=relu") == []
    assert ids(ran, filter="act=relu") == [4]
    # The other parameters hold besides.
    assert ids(ran, filter="metric:loss<1", name="run") == [2]


def test_filter_pages_in_both_orders(ran: Cluster) -> None:
    for order, expected in (("desc", [4, 2, 1]), ("asc", [1, 2, 4])):
        found: list[int] = []
        cursor = None
        while True:
            page = ask(
                ran,
                filter="lr>=0.01",
                limit=1,
                order=order,
                **({"cursor": cursor} if cursor else {}),
            )
            found += [item["id"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == expected


def test_values_of_columns(ran: Cluster) -> None:
    columns = ["metric:loss", "metric:accuracy", "hparam:lr", "hparam:optimizer.name"]
    items = ask(ran, columns=columns)["items"]
    assert {item["id"]: item["values"] for item in items[1:]} == {
        1: dict(zip(columns, (0.5, 0.9, 0.1, "adam"), strict=True)),
        2: dict(zip(columns, (0.25, 0.7, 0.01, "adam"), strict=True)),
        3: dict(zip(columns, (None, None, 0.001, "adam"), strict=True)),
    }
    columns = ["hparam:lr", "hparam:width", "hparam:act"]
    assert ask(ran, columns=columns)["items"][0]["values"] == {
        "hparam:lr": {"min": 0.0001, "max": 0.1},
        "hparam:width": {"min": 8, "max": 64},
        "hparam:act": {"any": ["relu", "gelu"]},
    }
    assert ask(ran)["items"][0]["values"] == {}


def test_lists_are_constant_text(ran: Cluster) -> None:
    [item] = ask(ran, filter="state:finished", columns=["hparam:layers"])["items"]
    assert item["values"] == {"hparam:layers": "[3, 3]"}


def test_order_by_columns_has_missing_values_last(ran: Cluster) -> None:
    assert ids(ran, sort="metric:accuracy") == [1, 2, 4, 3]
    assert ids(ran, sort="metric:accuracy", order="asc") == [2, 1, 4, 3]
    # The search has a range.
    assert ids(ran, sort="hparam:lr", order="asc") == [3, 2, 1, 4]
    assert ids(ran, sort="hparam:lr") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("sort=pool", "sort"),
        ("sort=metric:", "sort"),
        ("columns=loss", "columns"),
        ("columns=metric:", "columns"),
        ("columns=label:x", "columns"),
        ("filter=state:x", "filter"),
        (f"filter={'a' * 1001}", "filter"),
        ("&".join(["columns=metric:a"] * 21), "columns"),
    ],
)
def test_wrong_parameters_are_refused(cluster: Cluster, query: str, place: str) -> None:
    answer = cluster.get(f"/experiments?{query}")
    assert answer.status == 422
    assert answer.json["error"]["details"][0]["path"] == place


def test_wrong_filter_has_column(cluster: Cluster) -> None:
    error = cluster.get("/experiments?filter=lr%3E0.1%20state:x").json["error"]
    [detail] = error["details"]
    assert detail["column"] == 14
    assert error["message"].startswith("filter: character 14: 'x' is not valid; expected one of")


def test_cursor_of_other_column_is_refused(ran: Cluster) -> None:
    cursor = ask(ran, sort="metric:loss", limit=1)["next_cursor"]
    assert len(ids(ran, sort="metric:loss", cursor=cursor)) == 3
    assert ran.get(f"/experiments?sort=metric:accuracy&cursor={cursor}").status == 422


def test_values_are_read_in_few_calls(ran: Cluster) -> None:
    calls = {}
    for sort in ("name", "metric:loss"):
        with recorded_table(ran) as table:
            ask(ran, sort=sort, columns=["metric:loss", "hparam:lr"])
        calls[sort] = table.calls["query"], table.calls["get_many"]
    # Columns need no calls. The order needs the values rows and the state of a running experiment.
    queries, lookups = calls["name"]
    assert calls["metric:loss"] == (queries, lookups + 2)


def test_order_ends_at_the_limit_of_looked_up_experiments(ran: Cluster) -> None:
    agent = Agent(ran, "other", slots=1)
    run(ran, agent, 3, end=False, loss=0.75)
    limited = limit_queries(ran, looked_up_experiments_max=1)
    page = ask(limited, sort="metric:loss", order="asc")
    # Experiment 2 would be the second state to read.
    assert ([item["id"] for item in page["items"]], page["left_out_before"]) == ([3, 4], 3)
    found: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = ask(limited, filter="metric:loss<1", **({"cursor": cursor} if cursor else {}))
        found += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    # In the order of ids, pages end early and leave out nothing.
    assert found == [3, 2, 1]


def test_experiments_of_older_releases_are_looked_up(ran: Cluster) -> None:
    for number in (1, 3):
        ran.services.table.commit([Delete(Key(VALUES, f"{number:012d}"), Expect.PRESENT)])
    assert ids(ran, filter="metric:loss<1") == [2, 1]
    assert ids(ran, sort="hparam:lr", order="asc") == [3, 2, 1, 4]


def test_discarded_best_validation_has_no_other_metrics(cluster: Cluster) -> None:
    agent = Agent(cluster, slots=1)
    create(cluster)
    run(cluster, agent, 1, end=False, loss=0.5, accuracy=0.9)
    [allocation] = agent.known
    lost = {"kind": "exited", "reason": "lost", "code": None}
    agent.report(allocation, lost, writer="agent")
    [item] = ask(cluster, columns=["metric:loss", "metric:accuracy"])["items"]
    agent.known.clear()
    [again] = agent.take_work()
    [item] = ask(cluster, columns=["metric:loss", "metric:accuracy"])["items"]
    assert item["values"] == {"metric:loss": None, "metric:accuracy": None}
    agent.report(again, metrics(5, "validation", loss=0.75, accuracy=0.6))
    [item] = ask(cluster, columns=["metric:loss", "metric:accuracy"])["items"]
    assert item["values"] == {"metric:loss": 0.75, "metric:accuracy": 0.6}


def test_deletion_removes_the_values(ran: Cluster) -> None:
    key = Key(VALUES, f"{1:012d}")
    assert ran.services.table.get(key) is not None


def test_best_curves(ran: Cluster) -> None:
    items = ran.get("/experiment-curves?experiments=2,3,1,99").json["items"]
    assert items == [
        {"experiment_id": 2, "trial_id": 2, "points": [[10, 0.25]]},
        {"experiment_id": 1, "trial_id": 1, "points": [[10, 0.5]]},
    ]
    for wrong in ("", "x", "1,", "1,-2", ",".join(["1"] * 101)):
        answer = ran.get(f"/experiment-curves?experiments={wrong}")
        assert answer.status == 422, wrong
        assert "expected 1 to 100 ids" in answer.json["error"]["message"]
