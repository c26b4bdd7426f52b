"""Queries make a constant number of calls to the table, however much is stored.

In a cloud function, each call to the remote table costs time.
"""

from dataclasses import replace

import pytest

from control_plane.api.app import create_app
from control_plane.engine.experiment_reader import ExperimentReader
from control_plane.queries.model_records import ModelRecord
from control_plane.usecases.models import create_model
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import Cluster, limit_queries
from tests.unit.api.table_decorators import recorded_table

SINGLE = """
name: NAME
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


def create(cluster: Cluster, count: int) -> None:
    for _ in range(count):
        assert cluster.create(SINGLE, paused=True).status == 201


@pytest.mark.parametrize("query", ["", "sort=name", "sort=metric", "sort=cost&order=asc"])
def test_experiment_page_takes_constant_calls(cluster: Cluster, query: str) -> None:
    create(cluster, 12)
    calls = []
    for limit in (1, 12):
        # The first request fills the cache of definitions, which never change.
        assert cluster.get(f"/experiments?limit={limit}&{query}").status == 200
        with recorded_table(cluster) as table:
            answer = cluster.get(f"/experiments?limit={limit}&{query}").json
        assert len(answer["items"]) == limit
        calls.append(table.calls)
    assert calls[0] == calls[1]


def test_page_in_id_order_reads_limit_plus_one_rows(cluster: Cluster) -> None:
    create(cluster, 12)
    with recorded_table(cluster) as table:
        assert len(cluster.get("/experiments?limit=3").json["items"]) == 3
    assert table.rows_read == 4


def test_definitions_are_read_in_one_call(cluster: Cluster) -> None:
    create(cluster, 12)
    # A process that has read no definition yet.
    services = replace(
        cluster.services, make_experiments=lambda: ExperimentReader(cluster.services.engine)
    )
    cluster = replace(cluster, services=services, app=create_app(services))
    with recorded_table(cluster) as table:
        assert len(cluster.get("/experiments").json["items"]) == 12
    # The first call reads the states and settings, the second the definitions.
    assert table.calls["get_many"] == 2


def test_order_by_figures_reads_only_running_states(cluster: Cluster) -> None:
    agent = Agent(cluster, slots=1)
    create(cluster, 3)
    assert cluster.post("/experiments/2/activate", {}).status == 200
    [allocation] = agent.take_work()
    agent.report(allocation, metrics(5, "validation", loss=0.5))
    # The list's rows have the figures of all experiments that have not started.
    cluster = limit_queries(cluster, looked_up_experiments_max=1)
    for sort in ("metric", "progress"):
        answer = cluster.get(f"/experiments?sort={sort}").json
        assert [item["id"] for item in answer["items"]] == [2, 3, 1]
        assert answer["left_out_before"] is None


def test_queue_takes_constant_calls(cluster: Cluster) -> None:
    for _ in range(8):
        assert cluster.create(SINGLE).status == 201
    # The first request fills the cache of the pool's contents.
    assert cluster.get("/jobs").status == 200
    calls = []
    for limit in (1, 8):
        with recorded_table(cluster) as table:
            assert len(cluster.get(f"/jobs?limit={limit}").json["items"]) == limit
        calls.append(table.calls["get"] + table.calls["get_many"])
    assert calls[0] == calls[1]


def test_short_series_takes_one_query(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.report("1.1", metrics(1, loss=1.0), metrics(2, loss=0.5))
    path = "/trials/1/metrics/series?group=training"
    for points in (2, 2, 3):
        if points == 3:
            agent.report("1.1", metrics(3, loss=0.25))
        with recorded_table(cluster) as table:
            [series] = cluster.get(path).json["series"]
        assert (series["total"], table.calls["query"]) == (points, 1)


def test_trials_are_ranked_again_after_a_change(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.report("1.1", metrics(5, "validation", loss=0.5))
    agent.report("2.1", metrics(5, "validation", loss=0.25))

    def best() -> list[int]:
        answer = cluster.get("/experiments/1/metrics").json
        return [series["trial_id"] for series in answer["series"]]

    assert best()[:2] == [2, 1]
    with recorded_table(cluster) as table:
        assert best()[:2] == [2, 1]
    # A query for the series of each trial, and no query for the ranking.
    assert table.calls["query"] == len(best())
    agent.report("1.1", metrics(6, "validation", loss=0.125))
    assert best()[:2] == [1, 2]


def test_changed_queue_takes_constant_calls(
    cluster: Cluster,
) -> None:
    calls = []
    # A part of the pool holds about eleven jobs.
    for more in (2, 14):
        for _ in range(more):
            assert cluster.create(SINGLE).status == 201
        with recorded_table(cluster) as table:
            assert len(cluster.get("/jobs?limit=2").json["items"]) == 2
        calls.append(table.calls)
    assert calls[0] == calls[1]


def test_sparse_search_doubles_rows_per_query(cluster: Cluster) -> None:
    for number in range(100):
        record = ModelRecord(f"model {number}", "ada", 1, 1)
        create_model(cluster.services.table, record, lambda model, revision: ())
    with recorded_table(cluster) as table:
        assert cluster.get("/models?name=none&limit=1").json["items"] == []
    # 1 + 2 + 4 + ... + 64 = 127.
    assert (table.calls["query"], table.rows_read) == (7, 100)


def test_agents_are_read_in_one_call(cluster: Cluster) -> None:
    for name in "abc":
        Agent(cluster, name)
    with recorded_table(cluster) as table:
        assert len(cluster.get("/agents").json["items"]) == 3
    assert (table.calls["query"], table.calls["get_many"]) == (1, 1)
