"""Offerings and prices of the EC2 provider."""

import json
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from control_plane.fleet.records import Market, Offering
from provisioner.clouds.aws.price_list import PriceList
from provisioner.clouds.provider import ConfigurationError
from tests.unit.provisioner.ec2_account import G5, ON_DEMAND, SPOT, Account

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
# A root disk of 200 GiB at $0.08 a month of 730 hours, and a public address at $0.005.
BESIDE = 0.021918 + 0.005


def test_instance_type_is_the_default_offering(ec2: Account) -> None:
    (offering,) = ec2.cloud(instance_type="g6.xlarge").offerings()
    # 0.8048 is the list price.
    price = round(0.8048 + BESIDE, 6)
    assert offering == Offering("g6.xlarge/on_demand", "g6.xlarge", "", Market.ON_DEMAND, 1, price)
    (cpu,) = ec2.cloud(instance_type="m5.large", cpu_slots_allowed=True).offerings()
    assert (cpu.slots, cpu.price_per_hour) == (1, 0.0)
    with pytest.raises(
        ConfigurationError, match=r"'x9\.big' is not a known type; set its instance_slots"
    ):
        ec2.cloud(instance_type="x9.big").offerings()
    (given,) = ec2.cloud(instance_type="x9.big", instance_slots=3, spot=True).offerings()
    assert (given.slots, given.market) == (3, Market.SPOT)


def test_spot_prices_are_per_zone(ec2: Account) -> None:
    ec2.region.spot_prices = {(G5, A): 1.5, (G5, B): 2.5, (G5, C): 2.0}
    at_a, anywhere = replace(SPOT, name="a", zone=A), replace(SPOT, name="any")
    fixed = replace(SPOT, name="fixed", price_per_hour=0.7)
    cloud = ec2.cloud(at_a, anywhere, fixed, ON_DEMAND)
    prices = {offering.name: offering.price_per_hour for offering in cloud.offerings()}
    assert prices == {
        "a": pytest.approx(1.5 + BESIDE),
        "any": pytest.approx(2.5 + BESIDE),
        # A configured price is the total price.
        "fixed": 0.7,
        "g5/on_demand": pytest.approx(5.672 + BESIDE),
    }


def test_ignores_spot_prices_of_unused_zones(ec2: Account) -> None:
    ec2.region.spot_prices = {(G5, A): 1.5, (G5, B): 9.5, (G5, C): 2.0}
    first, _, last = ec2.region.subnets
    network = {"subnet_ids": [first, last]}
    (offering,) = ec2.cloud(SPOT, network_interface=network).offerings()
    assert offering.price_per_hour == pytest.approx(2.0 + BESIDE)
    # All zones count if EC2 does not describe the subnets.
    ec2.region.fail("DescribeSubnets", "RequestLimitExceeded")
    (offering,) = ec2.cloud(SPOT, network_interface=network).offerings()
    assert offering.price_per_hour == pytest.approx(9.5 + BESIDE)


def test_price_includes_disk_size_and_address(ec2: Account) -> None:
    section: dict[str, Any] = {"root_volume_size": 730, "network_interface": {"public_ip": False}}
    (offering,) = ec2.cloud(ON_DEMAND, **section).offerings()
    # 730 GiB at $0.08 a month of 730 hours.
    assert offering.price_per_hour == pytest.approx(5.672 + 0.08)


def test_price_includes_disk_performance(ec2: Account) -> None:
    faster: dict[str, Any] = {"root_volume_iops": 4_000, "root_volume_throughput": 225}
    (offering,) = ec2.cloud(ON_DEMAND, **faster).offerings()
    # 1,000 operations at $0.005 each and 100 MiB/s at $0.04 each, a month of 730 hours.
    assert offering.price_per_hour == pytest.approx(5.672 + BESIDE + (5 + 4) / 730, abs=1e-6)


def product(dollars: str, unit: str) -> str:
    """Return a product in the form of the Price List API."""
    dimension = {"unit": unit, "pricePerUnit": {"USD": dollars}}
    terms = {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}}}}
    return json.dumps({"product": {"sku": "SKU"}, "terms": terms})


class PriceApi:
    """A Price List API with the prices of eu-central-1."""

    def __init__(self) -> None:
        self.calls: list[dict[str, str]] = []
        self.error: Exception | None = None
        self.answer: dict[str, Any] | None = None

    def get_products(self, **request: Any) -> dict[str, Any]:
        assert request["ServiceCode"] == "AmazonEC2"
        wanted = {condition["Field"]: condition["Value"] for condition in request["Filters"]}
        self.calls.append(wanted)
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            return self.answer
        products = []
        if wanted["regionCode"] == "eu-central-1" and wanted.get("instanceType") == G5:
            products = [product("7.0940000000", "Hrs"), product("0.0000000000", "Quantity")]
        elif wanted["regionCode"] == "eu-central-1" and wanted.get("volumeApiName") == "gp3":
            products = [product("0.0952000000", "GB-Mo")]
        return {"PriceList": products}


def test_list_prices_are_per_region_and_cached_for_a_day(ec2: Account) -> None:
    api = PriceApi()
    prices = PriceList(lambda: api, lambda: ec2.now_ms)
    assert prices.instance_hour(G5, "eu-central-1") == 7.094
    assert prices.disk_gib_month("eu-central-1") == 0.0952
    assert api.calls[0]["operatingSystem"] == "Linux"
    ec2.now_ms += 24 * HOUR_MS - 1
    assert prices.instance_hour(G5, "eu-central-1") == 7.094
    assert len(api.calls) == 2
    ec2.now_ms += 1
    prices.instance_hour(G5, "eu-central-1")
    assert len(api.calls) == 3


def test_falls_back_to_the_price_table(ec2: Account) -> None:
    api = PriceApi()
    prices = PriceList(lambda: api, lambda: ec2.now_ms)
    api.error = EndpointConnectionError(endpoint_url="https://api.pricing.us-east-1.amazonaws.com")
    assert prices.instance_hour(G5, "eu-central-1") == 5.672
    assert prices.disk_gib_month("eu-central-1") == 0.08
    # After an hour, the provider requests prices again.
    api.error = None
    assert prices.instance_hour(G5, "eu-central-1") == 5.672
    ec2.now_ms += HOUR_MS
    assert prices.instance_hour(G5, "eu-central-1") == 7.094
    # The table also has prices that the API lacks.
    assert prices.instance_hour("g6.xlarge", "eu-central-1") == 0.8048
    assert prices.instance_hour(G5, "") == 5.672


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"terms": []}', '{"terms": {"OnDemand": []}}'])
def test_unexpected_products_have_the_price_of_the_table(ec2: Account, text: str) -> None:
    api = PriceApi()
    api.answer = {"PriceList": [text]}
    prices = PriceList(lambda: api, lambda: ec2.now_ms)
    assert prices.instance_hour(G5, "eu-central-1") == 5.672


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_missing_spot_prices_are_retried_after_a_minute(ec2: Account, code: str) -> None:
    ec2.region.spot_prices = {(G5, A): 1.5, (G5, B): 1.5, (G5, C): 1.5}
    ec2.region.fail("DescribeSpotPriceHistory", code)
    cloud = ec2.cloud(SPOT)
    assert [offering.price_per_hour for offering in cloud.offerings()] == [
        pytest.approx(5.672 + BESIDE)
    ]
    ec2.now_ms += MINUTE_MS - 1
    assert [offering.price_per_hour for offering in cloud.offerings()] == [
        pytest.approx(5.672 + BESIDE)
    ]
    ec2.now_ms += 1
    assert [offering.price_per_hour for offering in cloud.offerings()] == [
        pytest.approx(1.5 + BESIDE)
    ]
    ec2.now_ms += HOUR_MS - 1
    cloud.offerings()
    assert ec2.call_count("DescribeSpotPriceHistory") == 2


def test_spot_prices_are_read_once_an_hour(ec2: Account) -> None:
    cloud = ec2.cloud(SPOT)
    cloud.offerings()
    ec2.now_ms += HOUR_MS - 1
    cloud.offerings()
    assert ec2.call_count("DescribeSpotPriceHistory") == 1
    ec2.now_ms += 1
    cloud.offerings()
    assert ec2.call_count("DescribeSpotPriceHistory") == 2


def test_refused_spot_prices_fall_back_to_on_demand(ec2: Account) -> None:
    ec2.region.fail("DescribeSpotPriceHistory", "UnauthorizedOperation")
    (offering,) = ec2.cloud(SPOT).offerings()
    assert offering.price_per_hour == pytest.approx(5.672 + BESIDE)
