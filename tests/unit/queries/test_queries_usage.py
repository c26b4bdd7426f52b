"""Usage reports over HTTP."""

from typing import Any

import pytest

from control_plane.actors.cost import Usage, encode_usage, usage_partition, usage_sort_key
from control_plane.fleet.bills import bills_partition, day_start_ms, encode_bill, utc_day
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import NOW_MS, Cluster

HOUR_MS = 3_600_000
DOLLAR = 1_000_000
TODAY = utc_day(NOW_MS)


@pytest.fixture
def used_cluster(cluster: Cluster) -> Cluster:
    """Experiment 1 had four slots for two hours around midnight, half measured at 30 %, of which a
    fifth was low. A deleted experiment 9 has an old row without slots.
    """
    assert cluster.create(CONFIG).status == 201
    midnight = day_start_ms(TODAY)
    measured = 4 * HOUR_MS
    use = (4, measured, measured * 3 // 10, measured // 5, measured // 2)
    usages = (
        Usage(1, 1, 1, midnight - HOUR_MS, midnight + HOUR_MS, 8 * DOLLAR, *use),
        Usage(9, 5, 1, midnight, midnight + HOUR_MS, DOLLAR),
    )
    writes = [
        Put(
            Key(usage_partition("default"), usage_sort_key(one)),
            1,
            encode_usage(one),
            Expect.ABSENT,
        )
        for one in usages
    ]
    key = Key(bills_partition("default"), TODAY.isoformat()[:7])
    writes.append(Put(key, 1, encode_bill({TODAY: 10 * DOLLAR}), Expect.ABSENT))
    cluster.services.table.commit(writes)
    return cluster


def items(cluster: Cluster, by: str) -> dict[str, Any]:
    answer = cluster.get(f"/usage?by={by}")
    assert answer.status == 200, answer.body
    return {item["name"]: item for item in answer.json["items"]}


def test_use_of_an_experiment_is_reported(used_cluster: Cluster) -> None:
    lines = items(used_cluster, "experiment")
    line = lines["1"]
    assert (line["slot_hours"], line["measured_hours"], line["cost"]) == (8.0, 4.0, 8.0)
    assert (line["use_percent"], line["memory_percent"]) == (30.0, 50.0)
    # A fifth of the measured half of the time was low, so that a tenth of the cost is wasted.
    assert (line["low_cost"], line["wasted"]) == (pytest.approx(0.8), pytest.approx(0.8))
    assert (line["instance_cost"], line["idle_cost"]) == (None, None)
    assert (lines["9"]["slot_hours"], lines["9"]["use_percent"], lines["9"]["cost"]) == (0, None, 1)


def test_lines_begin_with_the_most_wasted_money(used_cluster: Cluster) -> None:
    assert list(items(used_cluster, "experiment")) == ["1", "9"]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("trial", {"1", "5"}),
        ("user", {"user-1", "unknown"}),
        ("project", {"Uncategorized", "unknown"}),
        ("workspace", {"Uncategorized", "unknown"}),
        ("pool", {"default"}),
    ],
)
def test_groupings_name_their_lines(used_cluster: Cluster, by: str, names: set[str]) -> None:
    assert set(items(used_cluster, by)) == names


def test_pool_has_paid_and_idle_money(used_cluster: Cluster) -> None:
    line = items(used_cluster, "pool")["default"]
    assert (line["instance_cost"], line["cost"], line["idle_cost"]) == (10.0, 9.0, 1.0)
    assert line["wasted"] == pytest.approx(1.8)


def test_run_over_midnight_is_split(used_cluster: Cluster) -> None:
    lines = items(used_cluster, "day")
    assert [line["slot_hours"] for line in lines.values()] == [4.0, 4.0]
    answer = used_cluster.get("/usage?by=pool-day").json["items"]
    assert [(item["title"], item["slot_hours"]) for item in answer] == [
        ("default", 4.0),
        ("default", 4.0),
    ]


def test_days_in_the_wrong_order_are_refused(used_cluster: Cluster) -> None:
    assert used_cluster.get("/usage?since=2027-01-20&until=2027-01-10").status == 422
    assert used_cluster.get("/usage?by=week").status == 422
