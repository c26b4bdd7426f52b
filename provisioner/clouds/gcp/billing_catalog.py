"""List prices of the Cloud Billing Catalog, in the region that they are for.

It has no prices of machine types: a machine costs its vCPUs, its memory and its GPUs, each by a
SKU that its description alone tells, as in "Spot Preemptible A2 Instance Core running in Americas".
Only what is meant for certain is read of it; a machine of which a part is missing has the price of
the table. Local disks that a machine type brings along are not counted, a hundredth of it.

Source: Cloud Billing documentation, "Get publicly available Google Cloud pricing information".
"""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from control_plane.fleet.records import Market
from control_plane.gcp.machine_types import (
    NONE_DESCRIBED,
    InstanceType,
    MachineTypes,
    accelerator_of,
    find_machine_type,
    gpus_of,
    is_sold_by_parts,
    parse_instance_type,
)
from provisioner.clouds.gcp.google_api import GoogleApi, JsonObject
from provisioner.clouds.gcp.price_list import PriceTable
from provisioner.clouds.provider import CloudError
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)

COMPUTE_SERVICE: Final = "6F81-5844-456A"
# The whole catalogue is tens of thousands of SKUs, and has no filter.
PAGE_SIZE: Final = 5000
PRICES_TTL_MS: Final = 24 * 60 * MINUTE_MS
# A tick has a minute for all that it does.
READ_MS_MAX: Final = 15_000
# A catalogue that was not told is asked for again after so long.
UNKNOWN_TTL_MS: Final = 60 * MINUTE_MS

_FIELDS: Final = (
    "nextPageToken,skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates/unitPrice))"
)
_MACHINE: Final = re.compile(
    r"(?:Spot Preemptible )?(?P<family>[A-Z][A-Za-z0-9]*)(?: Predefined| AMD| Arm)?"
    r" Instance (?P<part>Core|Ram) running in .+"
)
_GPU: Final = re.compile(r"(?P<name>.+?)(?: attached to Spot Preemptible VMs)? running in .+")
_GPU_NAMES: Final[Mapping[str, str]] = {
    "Nvidia Tesla T4 GPU": "nvidia-tesla-t4",
    "Nvidia Tesla P4 GPU": "nvidia-tesla-p4",
    "Nvidia Tesla P100 GPU": "nvidia-tesla-p100",
    "Nvidia Tesla V100 GPU": "nvidia-tesla-v100",
    "Nvidia Tesla A100 GPU": "nvidia-tesla-a100",
    "Nvidia Tesla A100 80GB GPU": "nvidia-a100-80gb",
    "Nvidia L4 GPU": "nvidia-l4",
    "Nvidia H100 80GB GPU": "nvidia-h100-80gb",
    "Nvidia H100 80GB Mega GPU": "nvidia-h100-mega-80gb",
    "H200 141GB GPU": "nvidia-h200-141gb",
    "A4 Nvidia B200 (1 gpu slice)": "nvidia-b200",
    "RTX 6000 96GB": "nvidia-rtx-pro-6000",
}
# Machine types whose vCPUs and memory are not sold by the name of their series.
_FAMILIES: Final = {"a3-megagpu-8g": "a3plus", "a3-ultragpu-8g": "a3ultra"}
_UNITS: Final = {"Core": "h", "Ram": "GiBy.h"}
_MARKETS: Final = {"OnDemand": Market.ON_DEMAND, "Preemptible": Market.SPOT}


class _Part(NamedTuple):
    """A part of machines that has a price: Core or Ram of a series, or a GPU by its name."""

    kind: str
    name: str
    market: Market
    region: str


class CatalogueTooSlow(CloudError):
    """The catalogue takes longer to read than a tick can wait."""


class BillingCatalog:
    """The catalogue, with the table behind it. `api` makes an API of the service `cloudbilling`;
    `clock` gives epoch ms. It is read as a whole, once a day, in READ_MS_MAX.
    """

    def __init__(self, api: Callable[[], GoogleApi], clock: Callable[[], int]) -> None:
        self._make_api = api
        self._clock = clock
        self._table = PriceTable()
        self._until_ms = 0
        self._prices: Mapping[_Part, float] = {}

    def instance_hour(
        self,
        instance_type: str,
        market: Market,
        region: str,
        described: MachineTypes = NONE_DESCRIBED,
    ) -> float:
        """Return an hour of an instance type, 0 where it is not known."""
        instance = parse_instance_type(instance_type)
        price = self._sum_of_parts(instance, market, region, described) if instance else 0.0
        return price or self._table.instance_hour(instance_type, market, region)

    def disk_gib_month(self, disk_type: str, region: str) -> float:
        """Return the table's price."""
        return self._table.disk_gib_month(disk_type, region)

    def _sum_of_parts(
        self, instance: InstanceType, market: Market, region: str, described: MachineTypes
    ) -> float:
        """The price of a machine, 0 where that of a part is not known."""
        machine = find_machine_type(instance.machine_type, described)
        if machine is None or not is_sold_by_parts(instance.machine_type):
            return 0.0
        prices = self._read_prices()
        series = _FAMILIES.get(instance.machine_type, instance.family)
        wanted = [("Core", series, float(machine.vcpus)), ("Ram", series, machine.memory_gb)]
        if gpus := gpus_of(instance, described):
            wanted.append(("GPU", accelerator_of(instance, described), gpus))
        parts = [
            amount * prices.get(_Part(kind, name, market, region), 0.0)
            for kind, name, amount in wanted
        ]
        return round(sum(parts), 6) if all(parts) else 0.0

    def _read_prices(self) -> Mapping[_Part, float]:
        if self._clock() < self._until_ms:
            return self._prices
        ttl_ms, until_ms = UNKNOWN_TTL_MS, self._clock() + READ_MS_MAX
        try:
            pages = self._make_api().read_pages(
                f"services/{COMPUTE_SERVICE}/skus",
                pageSize=PAGE_SIZE,
                currencyCode="USD",
                fields=_FIELDS,
            )
            prices: dict[_Part, float] = defaultdict(float)
            for page in pages:
                if self._clock() >= until_ms:
                    raise CatalogueTooSlow
                for part, price in _page_prices(page):
                    # The highest, where several SKUs are the same: no bill comes as a surprise.
                    prices[part] = max(prices[part], price)
            self._prices, ttl_ms = dict(prices), PRICES_TTL_MS
        except (CloudError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("using list prices from the built-in table: %s", type(error).__name__)
        self._until_ms = self._clock() + ttl_ms
        return self._prices


def _page_prices(page: JsonObject) -> Iterator[tuple[_Part, float]]:
    """The prices of parts that a page of SKUs tells."""
    for sku in page.get("skus", ()):
        market = _MARKETS.get(sku.get("category", {}).get("usageType", ""))
        found = _part_name(sku["description"])
        if market is None or found is None:
            continue
        kind, name = found
        for info in sku.get("pricingInfo", ()):
            expression = info["pricingExpression"]
            price = _unit_price(expression)
            if price > 0 and expression["usageUnit"] == _UNITS.get(kind, "h"):
                for region in sku.get("serviceRegions", ()):
                    yield _Part(kind, name, market, region), price


def _part_name(description: str) -> tuple[str, str] | None:
    """The kind and name of the part that a SKU is of; None for any other SKU, such as those of
    commitments and of nodes of one's own.
    """
    machine = _MACHINE.fullmatch(description)
    if machine is not None:
        return machine["part"], machine["family"].lower()
    gpu = _GPU.fullmatch(description)
    name = _GPU_NAMES.get(gpu["name"]) if gpu else None
    return ("GPU", name) if name else None


def _unit_price(expression: Mapping[str, Any]) -> float:
    """Dollars a unit: the last tier's, which is the only one of these."""
    price = expression["tieredRates"][-1]["unitPrice"]
    return int(price.get("units") or 0) + int(price.get("nanos") or 0) / 1e9
