"""Prices of offerings on Compute Engine."""

from dataclasses import replace

import pytest

from control_plane.fleet.records import Market, Offering
from provisioner.clouds.gcp.price_list import PriceTable
from tests.unit.provisioner.gce_account import A2, ON_DEMAND, SPOT, Account

HOUR_MS = 3_600_000
# 200 GiB of pd-standard for 0.04 $ a month of 730 hours.
DISK = 8 / 730


def test_an_offering_costs_its_machine_its_disk_and_its_address(gce: Account) -> None:
    prices = [it.price_per_hour for it in gce.cloud(ON_DEMAND, SPOT).offerings()]
    assert prices == pytest.approx([14.69354 + DISK, 4.408062 + DISK], abs=1e-6)
    public = {"network": "n", "external_ip": True}
    prices = [
        it.price_per_hour for it in gce.cloud(ON_DEMAND, SPOT, network_interface=public).offerings()
    ]
    # An address costs half as much on the spot market.
    assert prices == pytest.approx([14.69354 + DISK + 0.005, 4.408062 + DISK + 0.0025], abs=1e-6)
    ssd = gce.cloud(ON_DEMAND, boot_disk_type="pd-ssd", boot_disk_size=730)
    assert ssd.offerings()[0].price_per_hour == pytest.approx(14.69354 + 0.17, abs=1e-6)


def test_accelerators_are_paid_for_beside_the_machine(gce: Account) -> None:
    name = "n1-standard-8+nvidia-tesla-t4:2"
    table = PriceTable()
    # 8 vCPUs and 30 GB; 2 T4.
    on_demand = 8 * 0.031611 + 30 * 0.004237 + 2 * 0.35
    assert table.instance_hour(name, Market.ON_DEMAND, "us-central1") == pytest.approx(on_demand)
    spot = 8 * 0.006655 + 30 * 0.000892 + 2 * 0.11
    assert table.instance_hour(name, Market.SPOT, "us-central1") == pytest.approx(spot)


def test_what_is_not_known_has_no_price_and_spot_is_at_most_that_on_demand(gce: Account) -> None:
    table = PriceTable()
    for name in ("a4-highgpu-8g", "q9-standard-4", "n1-standard-8+nvidia-x:1", "?"):
        assert table.instance_hour(name, Market.ON_DEMAND, "us-central1") == 0
    assert table.instance_hour("a3-highgpu-8g", Market.SPOT, "us-central1") == 88.49
    unknown = replace(ON_DEMAND, instance_type="a4-highgpu-8g")
    assert [it.price_per_hour for it in gce.cloud(unknown).offerings()] == [0]
    dear = replace(ON_DEMAND, price_per_hour=3.0)
    assert gce.cloud(dear).offerings() == (dear,)


def test_a_pool_without_offerings_has_the_one_of_its_machine(gce: Account) -> None:
    (found,) = gce.cloud(instance_type={"machine_type": A2, "preemptible": True}).offerings()
    assert found == Offering(f"{A2}/spot", A2, "", Market.SPOT, 4, round(4.408062 + DISK, 6))
    (found,) = gce.cloud().offerings()
    # As the original has it.
    assert (found.instance_type, found.slots) == ("n1-standard-32+nvidia-tesla-t4:4", 4)
