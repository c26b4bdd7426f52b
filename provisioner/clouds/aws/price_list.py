"""List prices of EC2: those of the Price List API, in the region that they are for, and a dated
table for when it cannot be reached.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError

from control_plane.aws.instance_types import on_demand_price
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)

# Of us-east-1, as of 2025-06, as the types' prices: a GiB of gp3 a month, and a public address of
# version 4 an hour, which costs that in every region.
DISK_GIB_MONTH: Final = 0.08
PUBLIC_ADDRESS_HOUR: Final = 0.005
HOURS_PER_MONTH: Final = 730
# The regions that have the Price List API; each knows the prices of all.
PRICE_LIST_REGION: Final = "us-east-1"
PRICES_TTL_MS: Final = 24 * 60 * MINUTE_MS
# A price that was not told is asked for again after so long.
UNKNOWN_TTL_MS: Final = 60 * MINUTE_MS

_INSTANCE: Final = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
_FAILURES: Final = (sdk.ClientError, sdk.BotoCoreError, sdk.HTTPClientError, ResponseParserError)
_DISK: Final = {"productFamily": "Storage", "volumeApiName": "gp3"}


class PriceSource(Protocol):
    """A source of list prices, in dollars."""

    def instance_hour(self, instance_type: str, region: str) -> float:
        """An hour of a type on demand, 0 where it is not known."""

    def disk_gib_month(self, region: str) -> float:
        """A GiB of a root disk a month."""


class PriceTable:
    """The dated table, whose prices are of us-east-1 and estimates elsewhere."""

    def instance_hour(self, instance_type: str, region: str) -> float:
        """Return the table's price."""
        return on_demand_price(instance_type)

    def disk_gib_month(self, region: str) -> float:
        """Return the table's price."""
        return DISK_GIB_MONTH


class _CachedPrice(NamedTuple):
    until_ms: int
    price: float


class PriceList:
    """The Price List API, with the table behind it. `api` makes a client of the service `pricing`;
    `clock` gives epoch ms. Prices are read once a day.
    """

    def __init__(self, api: Callable[[], Any], clock: Callable[[], int]) -> None:
        self._make_api = api
        self._api: Any = None
        self._clock = clock
        self._table = PriceTable()
        self._known: dict[tuple[str, str], _CachedPrice] = {}

    def instance_hour(self, instance_type: str, region: str) -> float:
        """Return an hour of a type on demand, 0 where it is not known."""
        wanted = {**_INSTANCE, "instanceType": instance_type}
        fallback = self._table.instance_hour(instance_type, region)
        return self._price(instance_type, region, wanted, "Hrs", fallback)

    def disk_gib_month(self, region: str) -> float:
        """Return a GiB of gp3 a month."""
        return self._price("gp3", region, _DISK, "GB-Mo", self._table.disk_gib_month(region))

    def _price(
        self, name: str, region: str, wanted: Mapping[str, str], unit: str, fallback: float
    ) -> float:
        known = self._known.get((name, region))
        if known is None or self._clock() >= known.until_ms:
            price = self._read_price({**wanted, "regionCode": region}, unit) if region else 0.0
            ttl_ms = PRICES_TTL_MS if price else UNKNOWN_TTL_MS
            known = _CachedPrice(self._clock() + ttl_ms, price or fallback)
            self._known[name, region] = known
        return known.price

    def _read_price(self, wanted: Mapping[str, str], unit: str) -> float:
        """Read a price, 0 where there is none: the highest, where several products match."""
        try:
            self._api = self._api or self._make_api()
            answer = self._api.get_products(
                ServiceCode="AmazonEC2",
                Filters=[
                    {"Type": "TERM_MATCH", "Field": field, "Value": value}
                    for field, value in wanted.items()
                ],
                MaxResults=100,
            )
            return max(
                map(lambda item: _product_price(item, unit), answer["PriceList"]), default=0.0
            )
        except (*_FAILURES, ValueError, KeyError, TypeError) as error:
            log.warning("using a list price from the built-in table: %s", type(error).__name__)
            return 0.0


def _product_price(text: str, unit: str) -> float:
    """The price of a product on demand, as the API writes it: JSON in a string."""
    terms = json.loads(text)["terms"].get("OnDemand", {})
    prices = [
        float(dimension["pricePerUnit"]["USD"])
        for term in terms.values()
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == unit
    ]
    return max(prices, default=0.0)
