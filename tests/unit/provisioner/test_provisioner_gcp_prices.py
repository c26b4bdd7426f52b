"""Prices of offerings on Compute Engine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from control_plane.fleet.records import Market, Offering
from control_plane.gcp.machine_types import MachineType
from provisioner.clouds.gcp.billing_catalog import READ_MS_MAX, BillingCatalog
from provisioner.clouds.gcp.google_api import GoogleApi
from provisioner.clouds.gcp.price_list import PriceTable
from provisioner.clouds.provider import CloudError, NotAllowed
from tests.unit.provisioner.gce_account import A2, ON_DEMAND, SPOT, Account

HOUR_MS = 3_600_000
# 200 GiB of pd-standard at $0.04 a month of 730 hours.
DISK = 8 / 730


def test_price_includes_disk_and_address(gce: Account) -> None:
    prices = [offering.price_per_hour for offering in gce.cloud(ON_DEMAND, SPOT).offerings()]
    assert prices == pytest.approx([14.69354 + DISK, 4.408062 + DISK], abs=1e-6)
    public = {"network": "n", "external_ip": True}
    prices = [
        offering.price_per_hour
        for offering in gce.cloud(ON_DEMAND, SPOT, network_interface=public).offerings()
    ]
    # An address costs half as much on the spot market.
    assert prices == pytest.approx([14.69354 + DISK + 0.005, 4.408062 + DISK + 0.0025], abs=1e-6)
    ssd = gce.cloud(ON_DEMAND, boot_disk_type="pd-ssd", boot_disk_size=730)
    assert ssd.offerings()[0].price_per_hour == pytest.approx(14.69354 + 0.17, abs=1e-6)


def test_price_includes_accelerators(gce: Account) -> None:
    name = "n1-standard-8+nvidia-tesla-t4:2"
    table = PriceTable()
    # 8 vCPUs, 30 GB and 2 T4.
    on_demand = 8 * 0.031611 + 30 * 0.004237 + 2 * 0.35
    assert table.instance_hour(name, Market.ON_DEMAND, "us-central1") == pytest.approx(on_demand)
    spot = 8 * 0.006655 + 30 * 0.000892 + 2 * 0.11
    assert table.instance_hour(name, Market.SPOT, "us-central1") == pytest.approx(spot)


def test_unknown_price_is_0_and_spot_falls_back_to_on_demand(gce: Account) -> None:
    table = PriceTable()
    for name in ("a4-highgpu-8g", "q9-standard-4", "n1-standard-8+nvidia-x:1", "?"):
        assert table.instance_hour(name, Market.ON_DEMAND, "us-central1") == 0
    assert table.instance_hour("a3-highgpu-8g", Market.SPOT, "us-central1") == 88.49
    unknown = replace(ON_DEMAND, instance_type="a4-highgpu-8g")
    assert [offering.price_per_hour for offering in gce.cloud(unknown).offerings()] == [0]
    dear = replace(ON_DEMAND, price_per_hour=3.0)
    assert gce.cloud(dear).offerings() == (dear,)


def test_machine_type_is_the_default_offering(gce: Account) -> None:
    (offering,) = gce.cloud(instance_type={"machine_type": A2, "preemptible": True}).offerings()
    assert offering == Offering(f"{A2}/spot", A2, "", Market.SPOT, 4, round(4.408062 + DISK, 6))
    (offering,) = gce.cloud().offerings()
    assert (offering.instance_type, offering.slots) == ("n1-standard-4+nvidia-tesla-t4:1", 1)


def sku(description: str, dollars: float, usage: str = "OnDemand", unit: str = "h") -> Any:
    """Return a SKU of us-east1 and us-central1 in the catalog's form."""
    units, rest = divmod(round(dollars * 10**9), 10**9)
    price = {"currencyCode": "USD", "units": str(units), "nanos": rest}
    expression = {"usageUnit": unit, "tieredRates": [{"unitPrice": price}]}
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": ["us-east1", "us-central1"],
        "pricingInfo": [{"pricingExpression": expression}],
    }


CATALOGUE = [
    [
        sku("A2 Instance Core running in Americas", 0.04),
        sku("A2 Instance Ram running in Americas", 0.005, unit="GiBy.h"),
        sku("Nvidia Tesla A100 GPU running in Americas", 3.0),
        # A GPU with a similar name, a reserved GPU, and SKUs with other ways of payment.
        sku("Nvidia Tesla A100 80GB GPU running in Americas", 4.5),
        sku("Reserved Nvidia Tesla A100 GPU in Americas", 0.0),
        sku("Commitment v1: Nvidia Tesla A100 GPU running in Americas for 1 Year", 9.0),
        sku("Sole Tenancy A2 Instance Core running in Americas", 9.0),
        sku("A2 Instance Core running in Americas", 9.0, usage="Commit1Yr"),
    ],
    [
        sku("Spot Preemptible A2 Instance Core running in Americas", 0.02, "Preemptible"),
        sku("Spot Preemptible A2 Instance Ram running in Americas", 0.002, "Preemptible", "GiBy.h"),
        sku(
            "Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas",
            1.5,
            "Preemptible",
        ),
        sku("N1 Predefined Instance Core running in Americas", 0.03),
        sku("N1 Predefined Instance Ram running in Americas", 0.004, unit="GiBy.h"),
        sku("N1 Custom Instance Core running in Americas", 9.0),
    ],
]


class Catalogue(GoogleApi):
    """A catalog API that serves CATALOGUE page by page."""

    def __init__(self) -> None:
        self.calls: list[Mapping[str, Any]] = []
        self.error: CloudError | None = None

    def get(self, path: str, **query: Any) -> Mapping[str, Any]:
        assert path == "services/6F81-5844-456A/skus"
        self.calls.append(query)
        if self.error is not None:
            raise self.error
        place = int(query.get("pageToken", 0))
        more = {"nextPageToken": str(place + 1)} if place + 1 < len(CATALOGUE) else {}
        return {"skus": CATALOGUE[place], **more}


def test_catalog_price_is_the_sum_of_parts(gce: Account) -> None:
    catalogue = Catalogue()
    prices = BillingCatalog(lambda: catalogue, lambda: gce.now_ms)
    # 48 vCPUs, 340 GB, 4 GPUs.
    on_demand = 48 * 0.04 + 340 * 0.005 + 4 * 3.0
    assert prices.instance_hour(A2, Market.ON_DEMAND, "us-east1") == pytest.approx(on_demand)
    spot = 48 * 0.02 + 340 * 0.002 + 4 * 1.5
    assert prices.instance_hour(A2, Market.SPOT, "us-east1") == pytest.approx(spot)
    # 8 vCPUs and 30 GB, without GPUs.
    assert prices.instance_hour("n1-standard-8", Market.ON_DEMAND, "us-east1") == pytest.approx(
        8 * 0.03 + 30 * 0.004
    )
    gce.now_ms += 24 * HOUR_MS - 1
    prices.instance_hour(A2, Market.SPOT, "us-east1")
    assert len(catalogue.calls) == 2
    gce.now_ms += 1
    prices.instance_hour(A2, Market.SPOT, "us-east1")
    assert len(catalogue.calls) == 4


def test_unknown_part_falls_back_to_the_table(gce: Account) -> None:
    catalogue = Catalogue()
    prices = BillingCatalog(lambda: catalogue, lambda: gce.now_ms)
    # The catalog lacks T4 GPUs, other regions and G2 machines.
    name = "n1-standard-8+nvidia-tesla-t4:1"
    assert prices.instance_hour(name, Market.ON_DEMAND, "us-east1") == pytest.approx(
        8 * 0.031611 + 30 * 0.004237 + 0.35
    )
    assert prices.instance_hour(A2, Market.SPOT, "asia-east1") == 4.408062
    assert prices.instance_hour("g2-standard-4", Market.SPOT, "us-east1") == 0.23
    assert prices.instance_hour("e2-standard-4", Market.SPOT, "us-east1") == 0


def test_described_machine_has_a_price_unlike_a_custom_machine(
    gce: Account,
) -> None:
    catalogue = Catalogue()
    prices = BillingCatalog(lambda: catalogue, lambda: gce.now_ms)
    new, place = "a2-newgpu-3g", (Market.ON_DEMAND, "us-east1")
    described = {new: MachineType(3, 36, 255.0, "nvidia-tesla-a100")}
    assert prices.instance_hour(new, *place) == 0
    assert prices.instance_hour(new, *place, described) == pytest.approx(
        36 * 0.04 + 255 * 0.005 + 3 * 3.0
    )
    assert prices.instance_hour("n1-custom-8-30720", *place) == 0
    assert prices.disk_gib_month("pd-ssd", "us-east1") == 0.17


def test_falls_back_to_the_price_table(gce: Account) -> None:
    catalogue = Catalogue()
    prices = BillingCatalog(lambda: catalogue, lambda: gce.now_ms)
    catalogue.error = NotAllowed("accessNotConfigured")
    assert prices.instance_hour(A2, Market.SPOT, "us-east1") == 4.408062
    # An hour later, the catalog is read again.
    catalogue.error = None
    assert prices.instance_hour(A2, Market.SPOT, "us-east1") == 4.408062
    gce.now_ms += HOUR_MS
    assert prices.instance_hour(A2, Market.SPOT, "us-east1") == pytest.approx(7.64)


def test_slow_catalog_is_abandoned(
    gce: Account,
) -> None:
    catalogue = Catalogue()
    read = catalogue.get

    def read_slowly(path: str, **query: Any) -> Mapping[str, Any]:
        gce.now_ms += READ_MS_MAX
        return read(path, **query)

    catalogue.get = read_slowly  # type: ignore[method-assign]
    prices = BillingCatalog(lambda: catalogue, lambda: gce.now_ms)
    assert prices.instance_hour(A2, Market.SPOT, "us-east1") == 4.408062
    assert prices.instance_hour(A2, Market.SPOT, "us-east1") == 4.408062
    assert len(catalogue.calls) == 1
