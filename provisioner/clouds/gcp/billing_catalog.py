"""List prices from the Cloud Billing Catalog, by region.

The catalog has no prices of machine types. A machine costs the sum of its vCPUs, memory and GPUs.
Each of them is a SKU that only its description identifies, such as "Spot Preemptible A2 Instance
Core running in Americas". SKUs with unclear descriptions are skipped. A machine with an unknown
part gets its price from the built-in table. The local disks of a machine type, about 1 % of its
price, do not count.

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
# The catalog has tens of thousands of SKUs and no filter.
PAGE_SIZE: Final = 5000
PRICES_TTL_MS: Final = 24 * 60 * MINUTE_MS
# A tick must finish all steps within a minute.
READ_MS_MAX: Final = 15_000
# After a failure, the catalog is read again after this time.
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
# Machine types with SKUs that have another name than the machine's series.
_FAMILIES: Final = {"a3-megagpu-8g": "a3plus", "a3-ultragpu-8g": "a3ultra"}
_UNITS: Final = {"Core": "h", "Ram": "GiBy.h"}
_MARKETS: Final = {"OnDemand": Market.ON_DEMAND, "Preemptible": Market.SPOT}


class _Part(NamedTuple):
    """A part of a machine that has a price."""

    kind: str
    """`Core`, `Ram` or `GPU`."""
    name: str
    """The machine series of vCPUs and memory, or the type of a GPU."""
    market: Market
    region: str


class CatalogueTooSlow(CloudError):
    """A catalog that takes longer to read than READ_MS_MAX."""


class BillingCatalog:
    """Prices from the Cloud Billing Catalog, or from the table for prices that the catalog lacks.

    The whole catalog is read once a day; a read that takes more than READ_MS_MAX is given up. `api`
    creates an API of the service `cloudbilling`; `clock` returns epoch milliseconds.
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
        """Return the price of an instance type for an hour in dollars, or 0 if unknown.

        The sum of the catalog's prices of vCPUs, memory and GPUs, or else the table's price, which
        is that of us-central1. May read the whole catalog from Google: once a day, or an hour after
        a failure. A failure is only logged. `described` has machine types that the built-in list
        lacks.
        """
        instance = parse_instance_type(instance_type)
        price = self._sum_of_parts(instance, market, region, described) if instance else 0.0
        return price or self._table.instance_hour(instance_type, market, region)

    def disk_gib_month(self, disk_type: str, region: str) -> float:
        """Return the price of a GiB of a boot disk for a month in dollars; 0 for an unknown type.

        The price is that of us-central1 in the built-in table; the region is ignored. Google is not
        asked.
        """
        return self._table.disk_gib_month(disk_type, region)

    def _sum_of_parts(
        self, instance: InstanceType, market: Market, region: str, described: MachineTypes
    ) -> float:
        """Return the hourly price of a machine as the sum of the parts' prices in the catalog.

        Return 0 if the price of a part is unknown, the machine type is unknown, or the type is not
        sold by parts. The sum is in dollars, rounded to 6 digits. The catalog may be read from
        Google (`_read_prices`).
        """
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
        """Return the cached prices of all parts, after reading the catalog if the cache is too old.

        Prices are kept for PRICES_TTL_MS. A read that fails, or takes more than READ_MS_MAX, is
        logged and raises nothing. The former prices, empty before the first success, are then
        returned for UNKNOWN_TTL_MS without another read. Of several prices for a part, the highest
        counts.
        """
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
                    # Of several SKUs for a part, the highest price counts.
                    prices[part] = max(prices[part], price)
            self._prices, ttl_ms = dict(prices), PRICES_TTL_MS
        except (CloudError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("using list prices from the built-in table: %s", type(error).__name__)
        self._until_ms = self._clock() + ttl_ms
        return self._prices


def _page_prices(page: JsonObject) -> Iterator[tuple[_Part, float]]:
    """Yield the parts of machines with prices on a page of SKUs, once per region.

    Skip SKUs of other markets, parts or units, and prices of 0. A part may be yielded several
    times, with different prices. An unexpected form raises LookupError, TypeError, ValueError or
    AttributeError, after the earlier parts were yielded.
    """
    for sku in page.get("skus", ()):
        market = _MARKETS.get(sku.get("category", {}).get("usageType", ""))
        part = _part_name(sku["description"])
        if market is None or part is None:
            continue
        kind, name = part
        for info in sku.get("pricingInfo", ()):
            expression = info["pricingExpression"]
            price = _unit_price(expression)
            if price > 0 and expression["usageUnit"] == _UNITS.get(kind, "h"):
                for region in sku.get("serviceRegions", ()):
                    yield _Part(kind, name, market, region), price


def _part_name(description: str) -> tuple[str, str] | None:
    """Return the kind (`Core`, `Ram` or `GPU`) and the name of the part in a SKU's description.

    The name is the machine's series in lower case, or the type of a GPU. Return None for other
    SKUs, such as commitments and sole-tenant nodes, and for unlisted GPUs.
    """
    machine = _MACHINE.fullmatch(description)
    if machine is not None:
        return machine["part"], machine["family"].lower()
    gpu = _GPU.fullmatch(description)
    name = _GPU_NAMES.get(gpu["name"]) if gpu else None
    return ("GPU", name) if name else None


def _unit_price(expression: Mapping[str, Any]) -> float:
    """Return the price of a unit in dollars, from the last tier, which is the only tier.

    Missing units or nanos count as 0. An unexpected form, such as no tier, raises LookupError,
    TypeError, ValueError or AttributeError.
    """
    price = expression["tieredRates"][-1]["unitPrice"]
    return int(price.get("units") or 0) + int(price.get("nanos") or 0) / 1e9
