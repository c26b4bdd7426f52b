"""The plan of a self-test: the first offering of each pool, the cost and its limit."""

from typing import Any

import pytest

from detcloud.cli.verification.plan import (
    CHECK_MINUTES,
    FAULT_SERVICE_COST,
    NOTICE_MINUTES,
    check_cost,
    make_plan,
)
from detcloud.shared.errors import DetcloudError

Pool = dict[str, Any]


def offering(price: float, market: str = "spot", slots: int = 1) -> Pool:
    name = f"type{price}"
    return {
        "offering": f"{name}/a/{market}",
        "instance_type": name,
        "zone": "a",
        "market": market,
        "slots": slots,
        "price_per_hour": price,
    }


def pool(name: str, *offerings: Pool, cloud: str = "aws", state: str = "OPEN") -> Pool:
    return {
        "name": name,
        "state": state,
        "offerings": list(offerings),
        "config": {"provider": {"type": cloud}},
        "fleet": {"offerings": []},
    }


def test_plan_has_the_first_offering_of_each_pool_of_the_cloud() -> None:
    desk = {**pool("desk"), "config": {"provider": None}}
    pools = [pool("a", offering(0.3)), pool("g", offering(0.2), cloud="gcp"), desk]
    plan = make_plan(pools, "aws", has_notice=False)
    [planned] = plan.pools
    assert (planned.pool, planned.instance_type, planned.market) == ("a", "type0.3", "spot")
    assert planned.cost == pytest.approx(0.3 * CHECK_MINUTES / 60)
    assert plan.skipped == {}


def test_spot_comes_before_cheaper_on_demand() -> None:
    plan = make_plan([pool("a", offering(0.1, "on_demand"), offering(0.3))], "aws")
    assert plan.pools[0].market == "spot"


def test_failing_offering_is_not_launched_first() -> None:
    failing = pool("a", offering(0.1), offering(0.3))
    failing["fleet"]["offerings"] = [{"offering": "type0.1/a/spot"}]
    assert make_plan([failing], "aws").pools[0].instance_type == "type0.3"


@pytest.mark.parametrize(("slots", "checked"), [(1, 1), (2, 2), (8, 2)])
def test_check_uses_two_slots_where_the_type_has_them(slots: int, checked: int) -> None:
    plan = make_plan([pool("a", offering(0.3, slots=slots))], "aws")
    assert plan.pools[0].slots == checked


def test_pool_without_slots_is_left_out() -> None:
    plan = make_plan([pool("a", offering(0.3)), pool("b", offering(0.1, slots=0))], "aws")
    assert "no slots" in plan.skipped["b"]


def test_notice_is_planned_in_the_cheapest_spot_pool() -> None:
    pools = [
        pool("demand", offering(0.05, "on_demand")),
        pool("dear", offering(0.5)),
        pool("cheap", offering(0.2)),
    ]
    plan = make_plan(pools, "aws")
    assert plan.notice_pool is not None
    assert plan.notice_pool.pool == "cheap"
    assert plan.notice_pool.minutes == CHECK_MINUTES + NOTICE_MINUTES


def test_fault_injection_service_adds_its_cost() -> None:
    pools = [pool("a", offering(0.3))]
    dearer, plan = make_plan(pools, "aws", has_fault_service=True), make_plan(pools, "aws")
    assert dearer.cost - plan.cost == pytest.approx(FAULT_SERVICE_COST)


def test_closed_pool_is_left_out_with_the_reason() -> None:
    plan = make_plan([pool("a", offering(0.3)), pool("b", state="DRAINING"), pool("c")], "aws")
    assert plan.skipped == {
        "b": "the pool accepts no jobs: DRAINING",
        "c": "the cluster has no offering of the pool yet: try again in two minutes",
    }


def test_unknown_pool_is_refused() -> None:
    with pytest.raises(DetcloudError, match="no pool x on aws; there is a"):
        make_plan([pool("a", offering(0.3))], "aws", ["x"])


def test_cluster_without_a_pool_of_the_cloud_is_refused() -> None:
    with pytest.raises(DetcloudError, match="has no pool on aws"):
        make_plan([pool("g", offering(0.3), cloud="gcp")], "aws")


def test_dear_plan_names_the_pools_to_leave_out() -> None:
    # Each pool is checked for 9 minutes, and the cheapest has a notice of 14 minutes more:
    # 0.2 x 23 / 60 = 0.077, 0.4 x 9 / 60 = 0.06, 30 x 9 / 60 = 4.50 dollars.
    pools = [pool("h100", offering(30.0)), pool("a", offering(0.2)), pool("b", offering(0.4))]
    plan = make_plan(pools, "aws")
    with pytest.raises(DetcloudError) as refused:
        check_cost(plan, 0.20)
    text = str(refused.value)
    assert "the plan costs 4.64 $, more than --max-cost 0.20" in text
    assert "leave out h100 (4.50 $): --pool b --pool a" in text
    check_cost(make_plan(pools, "aws", ["a", "b"]), 0.20)


def test_unknown_price_is_refused() -> None:
    plan = make_plan([pool("a", offering(0.2)), pool("b", offering(0.0))], "aws")
    with pytest.raises(DetcloudError, match=r"price of pool b is unknown.*: --pool a"):
        check_cost(plan, 10.0)
