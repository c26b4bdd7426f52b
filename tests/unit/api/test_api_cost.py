"""What was spent, over HTTP."""

from datetime import date
from typing import Any

import pytest

from control_plane.actors.cost import Usage, usage_of, usage_sort, written_usage
from control_plane.fleet.bills import bills_of, start_ms, written_bill
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import Cluster

HOUR_MS = 3_600_000
DOLLAR = 1_000_000
# The clock stands at 2027-01-15, 8 o'clock in UTC.
TODAY, YESTERDAY = date(2027, 1, 15), date(2027, 1, 14)


def spend(served: Cluster, *usages: Usage) -> None:
    served.services.table.commit(
        [
            Put(Key(usage_of("default"), usage_sort(usage)), 1, written_usage(usage), Expect.ABSENT)
            for usage in usages
        ]
    )


def lines(answer: Any) -> dict[str, float]:
    assert answer.status == 200, answer.body
    return {item["name"]: item["cost"] for item in answer.json["items"]}


@pytest.fixture
def spent(served: Cluster) -> Cluster:
    """Experiment 1 spent 3 dollars in two hours around midnight, experiment 2 one this morning."""
    assert served.create(CONFIG).status == 201
    midnight = start_ms(TODAY)
    spend(
        served,
        Usage(1, 1, 1, midnight - HOUR_MS, midnight + HOUR_MS, 3 * DOLLAR),
        Usage(2, 5, 1, midnight + HOUR_MS, midnight + 2 * HOUR_MS, DOLLAR),
    )
    bill = {YESTERDAY: 2 * DOLLAR, TODAY: 5 * DOLLAR}
    key = Key(bills_of("default"), "2027-01")
    served.services.table.commit([Put(key, 1, written_bill(bill), Expect.ABSENT)])
    return served


def test_costs_are_told_by_experiment_with_the_dearest_first(spent: Cluster) -> None:
    answer = spent.get("/cost")
    assert list(lines(answer).items()) == [("1", 3.0), ("2", 1.0)]
    assert (answer.json["since"], answer.json["until"]) == ("2027-01-01", "2027-01-15")
    # of 7 dollars for instances nobody had 3
    total = answer.json["total"]
    assert (total["cost"], total["instance_cost"], total["idle_cost"]) == (4.0, 7.0, 3.0)


def test_costs_are_told_by_trial_user_pool_and_day(spent: Cluster) -> None:
    assert lines(spent.get("/cost?by=trial")) == {"1": 3.0, "5": 1.0}
    # experiment 2 is gone: nobody knows whose it was
    assert lines(spent.get("/cost?by=user")) == {"user-1": 3.0, "unknown": 1.0}
    assert lines(spent.get("/cost?by=pool")) == {"default": 4.0}
    assert lines(spent.get("/cost?by=day")) == {"2027-01-14": 1.5, "2027-01-15": 2.5}


def test_what_an_allocation_cost_counts_on_the_days_that_it_ran(spent: Cluster) -> None:
    assert lines(spent.get("/cost?since=2027-01-15")) == {"1": 1.5, "2": 1.0}
    assert lines(spent.get("/cost?until=2027-01-14")) == {"1": 1.5}
    assert lines(spent.get("/cost?since=2027-01-13&until=2027-01-13")) == {}


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("by=week", "by"),
        ("since=monday", "since"),
        ("since=2020-01-01", "since"),
        ("since=2027-01-10&until=2027-01-09", "since"),
    ],
)
def test_a_span_that_cannot_be_told_is_refused_by_its_name(
    served: Cluster, query: str, place: str
) -> None:
    answer = served.get(f"/cost?{query}")
    assert (answer.status, answer.code) == (422, "invalid")
    assert place in answer.body.decode()
