"""Offerings and prices of EC2, from the simulated one."""

from dataclasses import replace

import pytest

from control_plane.fleet.records import Market, Offering
from provisioner.clouds.provider import ConfigurationError
from tests.unit.provisioner.ec2_account import G5, ON_DEMAND, SPOT, Account

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def test_without_offerings_the_type_is_the_offering(ec2: Account) -> None:
    (found,) = ec2.cloud(instance_type="g6.xlarge").offerings()
    # 0.8048 is the list price.
    assert found == Offering("g6.xlarge/on_demand", "g6.xlarge", "", Market.ON_DEMAND, 1, 0.8048)
    (cpu,) = ec2.cloud(instance_type="m5.large", cpu_slots_allowed=True).offerings()
    assert (cpu.slots, cpu.price_per_hour) == (1, 0.0)
    with pytest.raises(
        ConfigurationError, match=r"'x9\.big' is no known type; say its instance_slots"
    ):
        ec2.cloud(instance_type="x9.big").offerings()
    (given,) = ec2.cloud(instance_type="x9.big", instance_slots=3, spot=True).offerings()
    assert (given.slots, given.market) == (3, Market.SPOT)


def test_spot_prices_are_those_of_the_zone(ec2: Account) -> None:
    ec2.region.spot_prices = {(G5, A): 1.5, (G5, B): 2.5, (G5, C): 2.0}
    at_a, anywhere = replace(SPOT, name="a", zone=A), replace(SPOT, name="any")
    said = replace(SPOT, name="said", price_per_hour=0.7)
    cloud = ec2.cloud(at_a, anywhere, said, ON_DEMAND)
    prices = {it.name: it.price_per_hour for it in cloud.offerings()}
    assert prices == {"a": 1.5, "any": 2.5, "said": 0.7, "g5/on_demand": 5.672}


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_prices_that_were_not_told_are_asked_for_a_minute_later(ec2: Account, code: str) -> None:
    ec2.region.spot_prices = {(G5, A): 1.5, (G5, B): 1.5, (G5, C): 1.5}
    ec2.region.fail("DescribeSpotPriceHistory", code)
    cloud = ec2.cloud(SPOT)
    assert [it.price_per_hour for it in cloud.offerings()] == [5.672]
    ec2.now_ms += MINUTE_MS - 1
    assert [it.price_per_hour for it in cloud.offerings()] == [5.672]
    ec2.now_ms += 1
    assert [it.price_per_hour for it in cloud.offerings()] == [1.5]
    ec2.now_ms += HOUR_MS - 1
    cloud.offerings()
    assert ec2.call_count("DescribeSpotPriceHistory") == 2


def test_prices_are_asked_for_once_an_hour(ec2: Account) -> None:
    cloud = ec2.cloud(SPOT)
    cloud.offerings()
    ec2.now_ms += HOUR_MS - 1
    cloud.offerings()
    assert ec2.call_count("DescribeSpotPriceHistory") == 1
    ec2.now_ms += 1
    cloud.offerings()
    assert ec2.call_count("DescribeSpotPriceHistory") == 2


def test_who_may_not_see_prices_takes_those_on_demand(ec2: Account) -> None:
    ec2.region.fail("DescribeSpotPriceHistory", "UnauthorizedOperation")
    (found,) = ec2.cloud(SPOT).offerings()
    assert found.price_per_hour == 5.672
