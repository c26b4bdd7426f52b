"""Answers take as many calls of the table whatever is stored: each of them is a wait in a function
that is far from it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from control_plane.queries import experiment_list
from control_plane.queries.model_records import ModelRecord
from control_plane.state.faults import TableDecorator
from control_plane.state.table import Key, Page, Row
from control_plane.usecases.models import create_model
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import Cluster

SINGLE = """
name: NAME
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


class CountingTable(TableDecorator):
    """Counts the calls that read."""

    snapshot_queries = True

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.services.table)
        self.calls: Counter[str] = Counter()
        self.rows_read = 0

    def get(self, key: Key) -> Row | None:
        self.calls["get"] += 1
        return super().get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        self.calls["get_many"] += 1
        return self.table.get_many(keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        self.calls["query"] += 1
        page = super().query(partition, first, last, limit=limit, descending=descending)
        self.rows_read += len(page.rows)
        return page


@contextmanager
def counting_table(cluster: Cluster) -> Iterator[CountingTable]:
    """The table's calls that are made within."""
    table = CountingTable(cluster)
    cluster.services.engine.table = table
    yield table
    cluster.services.engine.table = table.table


def create(cluster: Cluster, count: int) -> None:
    for _ in range(count):
        assert cluster.create(SINGLE, paused=True).status == 201


@pytest.mark.parametrize("query", ["", "sort=name", "sort=metric", "sort=cost&order=asc"])
def test_a_page_of_experiments_takes_as_many_calls_for_one_as_for_many(
    cluster: Cluster, query: str
) -> None:
    create(cluster, 12)
    calls = []
    for limit in (1, 12):
        # The definitions, which never change, are read once.
        assert cluster.get(f"/experiments?limit={limit}&{query}").status == 200
        with counting_table(cluster) as table:
            answer = cluster.get(f"/experiments?limit={limit}&{query}").json
        assert len(answer["items"]) == limit
        calls.append(table.calls)
    assert calls[0] == calls[1]


def test_a_page_by_age_reads_its_own_rows_of_the_list_and_one_more(cluster: Cluster) -> None:
    create(cluster, 12)
    with counting_table(cluster) as table:
        assert len(cluster.get("/experiments?limit=3").json["items"]) == 3
    assert table.rows_read == 4


def test_definitions_are_read_together(cluster: Cluster) -> None:
    create(cluster, 12)
    cluster.services.agents._definitions._kept._entries.clear()
    with counting_table(cluster) as table:
        assert len(cluster.get("/experiments").json["items"]) == 12
    # The states with the settings, and the definitions.
    assert table.calls["get_many"] == 2


def test_an_order_by_figures_reads_the_states_of_what_runs_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(cluster, slots=1)
    create(cluster, 3)
    assert cluster.post("/experiments/2/activate", {}).status == 200
    [allocation] = agent.take_work()
    agent.report(allocation, metrics(5, "validation", loss=0.5))
    # Of the others it is known from the list that they have not begun.
    monkeypatch.setattr(experiment_list, "LOOKED_UP_MAX", 1)
    for sort in ("metric", "progress"):
        answer = cluster.get(f"/experiments?sort={sort}").json
        assert [item["id"] for item in answer["items"]] == [2, 3, 1]
        assert answer["left_out_before"] is None


def test_a_queue_is_described_with_as_many_calls_for_one_as_for_many(cluster: Cluster) -> None:
    for _ in range(8):
        assert cluster.create(SINGLE).status == 201
    # The pool is read once as long as it does not change.
    assert cluster.get("/jobs").status == 200
    calls = []
    for limit in (1, 8):
        with counting_table(cluster) as table:
            assert len(cluster.get(f"/jobs?limit={limit}").json["items"]) == limit
        calls.append(table.calls["get"] + table.calls["get_many"])
    assert calls[0] == calls[1]


def test_a_short_series_is_read_with_one_query_at_first_and_later(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.report("1.1", metrics(1, loss=1.0), metrics(2, loss=0.5))
    path = "/trials/1/metrics/series?group=training"
    for points in (2, 2, 3):
        if points == 3:
            agent.report("1.1", metrics(3, loss=0.25))
        with counting_table(cluster) as table:
            [series] = cluster.get(path).json["series"]
        assert (series["total"], table.calls["query"]) == (points, 1)


def test_the_best_trials_are_ranked_again_when_the_experiment_changes(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    agent.report("1.1", metrics(5, "validation", loss=0.5))
    agent.report("2.1", metrics(5, "validation", loss=0.25))

    def best() -> list[int]:
        answer = cluster.get("/experiments/1/metrics").json
        return [series["trial_id"] for series in answer["series"]]

    assert best()[:2] == [2, 1]
    with counting_table(cluster) as table:
        assert best()[:2] == [2, 1]
    # A query for each of the trials' series, and none for their ranks.
    assert table.calls["query"] == len(best())
    agent.report("1.1", metrics(6, "validation", loss=0.125))
    assert best()[:2] == [1, 2]


def test_a_queue_that_has_changed_is_read_with_as_many_calls_for_few_jobs_as_for_many(
    cluster: Cluster,
) -> None:
    calls = []
    # A part of the pool holds some eleven jobs.
    for more in (2, 14):
        for _ in range(more):
            assert cluster.create(SINGLE).status == 201
        with counting_table(cluster) as table:
            assert len(cluster.get("/jobs?limit=2").json["items"]) == 2
        calls.append(table.calls)
    assert calls[0] == calls[1]


def test_a_search_that_finds_little_reads_more_rows_with_each_query(cluster: Cluster) -> None:
    for number in range(100):
        record = ModelRecord(f"model {number}", "ada", 1, 1)
        create_model(cluster.services.table, record, lambda model, revision: ())
    with counting_table(cluster) as table:
        assert cluster.get("/models?name=none&limit=1").json["items"] == []
    # 1 + 2 + 4 + ... + 64 = 127.
    assert (table.calls["query"], table.rows_read) == (7, 100)


def test_agents_are_read_together(cluster: Cluster) -> None:
    for name in "abc":
        Agent(cluster, name)
    with counting_table(cluster) as table:
        assert len(cluster.get("/agents").json["items"]) == 3
    assert (table.calls["query"], table.calls["get_many"]) == (1, 1)
