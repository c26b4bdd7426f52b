"""Cost reports over HTTP."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from control_plane.actors.cost import Usage, encode_usage, usage_partition, usage_sort_key
from control_plane.fleet.bills import bills_partition, day_start_ms, encode_bill
from control_plane.queries import cost
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import Cluster

HOUR_MS = 3_600_000
DOLLAR = 1_000_000
# The clock is fixed at 2027-01-15 08:00 UTC.
TODAY, YESTERDAY = date(2027, 1, 15), date(2027, 1, 14)


def spend(cluster: Cluster, *usages: Usage) -> None:
    cluster.services.table.commit(
        [
            Put(
                Key(usage_partition("default"), usage_sort_key(usage)),
                1,
                encode_usage(usage),
                Expect.ABSENT,
            )
            for usage in usages
        ]
    )


def lines(answer: Any) -> dict[str, float]:
    assert answer.status == 200, answer.body
    return {item["name"]: item["cost"] for item in answer.json["items"]}


@pytest.fixture
def cluster_with_costs(cluster: Cluster) -> Cluster:
    """Experiment 1 spent $3 in the two hours around midnight, experiment 2 $1 this morning."""
    assert cluster.create(CONFIG).status == 201
    midnight = day_start_ms(TODAY)
    spend(
        cluster,
        Usage(1, 1, 1, midnight - HOUR_MS, midnight + HOUR_MS, 3 * DOLLAR),
        Usage(2, 5, 1, midnight + HOUR_MS, midnight + 2 * HOUR_MS, DOLLAR),
    )
    bill = {YESTERDAY: 2 * DOLLAR, TODAY: 5 * DOLLAR}
    key = Key(bills_partition("default"), "2027-01")
    cluster.services.table.commit([Put(key, 1, encode_bill(bill), Expect.ABSENT)])
    return cluster


def test_report_by_experiment_lists_most_expensive_first(cluster_with_costs: Cluster) -> None:
    answer = cluster_with_costs.get("/cost")
    assert list(lines(answer).items()) == [("1", 3.0), ("2", 1.0)]
    assert (answer.json["since"], answer.json["until"]) == ("2027-01-01", "2027-01-15")
    # Allocations used $4 of the instances' $7.
    total = answer.json["total"]
    assert (total["cost"], total["instance_cost"], total["idle_cost"]) == (4.0, 7.0, 3.0)


def test_report_by_trial_user_pool_and_day(cluster_with_costs: Cluster) -> None:
    assert lines(cluster_with_costs.get("/cost?by=trial")) == {"1": 3.0, "5": 1.0}
    # Experiment 2 does not exist, so that the user is unknown.
    assert lines(cluster_with_costs.get("/cost?by=user")) == {"user-1": 3.0, "unknown": 1.0}
    assert lines(cluster_with_costs.get("/cost?by=pool")) == {"default": 4.0}
    assert lines(cluster_with_costs.get("/cost?by=day")) == {"2027-01-14": 1.5, "2027-01-15": 2.5}


def test_cost_of_an_allocation_is_divided_among_days(
    cluster_with_costs: Cluster,
) -> None:
    assert lines(cluster_with_costs.get("/cost?since=2027-01-15")) == {"1": 1.5, "2": 1.0}
    assert lines(cluster_with_costs.get("/cost?until=2027-01-14")) == {"1": 1.5}
    assert lines(cluster_with_costs.get("/cost?since=2027-01-13&until=2027-01-13")) == {}


@pytest.mark.parametrize("is_seen_running", [True, False])
def test_allocation_that_ends_during_the_read_is_counted_once(
    cluster_with_costs: Cluster, monkeypatch: pytest.MonkeyPatch, is_seen_running: bool
) -> None:
    midnight = day_start_ms(TODAY)
    ended = Usage(1, 2, 1, midnight, midnight + HOUR_MS, 5 * DOLLAR)
    running = replace(ended, micros=4 * DOLLAR)

    def end_while_running_is_read(*_: object) -> list[Usage]:
        spend(cluster_with_costs, ended)
        return [running] if is_seen_running else []

    monkeypatch.setattr(cost, "_running_usages", end_while_running_is_read)
    # $3 of the fixture, and the final $5 of the allocation.
    assert lines(cluster_with_costs.get("/cost")) == {"1": 8.0, "2": 1.0}


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("by=week", "by"),
        ("since=monday", "since"),
        ("since=2020-01-01", "since"),
        ("since=2027-01-10&until=2027-01-09", "since"),
    ],
)
def test_rejects_invalid_span_by_name(cluster: Cluster, query: str, place: str) -> None:
    answer = cluster.get(f"/cost?{query}")
    assert (answer.status, answer.code) == (422, "invalid")
    assert place in answer.body.decode()
