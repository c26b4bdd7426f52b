"""List prices of EC2 from AWS's Price List API, or from a built-in table if the API fails.

The table has the prices of us-east-1 as of 2025-06.
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

# Dollars per month for a GiB of a gp3 disk in us-east-1, as of 2025-06.
DISK_GIB_MONTH: Final = 0.08
# Dollars per hour for a public IPv4 address, in every region.
PUBLIC_ADDRESS_HOUR: Final = 0.005
HOURS_PER_MONTH: Final = 730
# Few regions have the Price List API; us-east-1 has the prices of all regions.
PRICE_LIST_REGION: Final = "us-east-1"
PRICES_TTL_MS: Final = 24 * 60 * MINUTE_MS
# An unknown price is requested again after this time.
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
        """Return the on-demand price of an instance for an hour, or 0 if unknown.

        The price may be an estimate from another region. Failed requests raise nothing.
        """

    def disk_gib_month(self, region: str) -> float:
        """Return the price of a GiB of a gp3 disk for a month; an estimate if unknown, never 0."""


class PriceTable:
    """The built-in table of us-east-1's prices, which are estimates for other regions."""

    def instance_hour(self, instance_type: str, region: str) -> float:
        """Return the on-demand price in us-east-1 of an instance for an hour, or 0 if unknown.

        The price is in dollars; `region` is ignored.
        """
        return on_demand_price(instance_type)

    def disk_gib_month(self, region: str) -> float:
        """Return the price in us-east-1 of a GiB of a gp3 disk for a month, in dollars.

        `region` is ignored.
        """
        return DISK_GIB_MONTH


class _CachedPrice(NamedTuple):
    """A price in dollars, with the end of the price's use in epoch milliseconds."""

    until_ms: int
    price: float


class PriceList:
    """Prices from the Price List API, or from the table for prices that the API lacks.

    Prices are cached for a day. `api` creates a client of the service `pricing` at first use;
    `clock` returns epoch milliseconds.
    """

    def __init__(self, api: Callable[[], Any], clock: Callable[[], int]) -> None:
        self._make_api = api
        self._api: Any = None
        self._clock = clock
        self._table = PriceTable()
        self._known: dict[tuple[str, str], _CachedPrice] = {}

    def instance_hour(self, instance_type: str, region: str) -> float:
        """Return the on-demand price of an instance for an hour in dollars, or 0 if unknown.

        Read from the API once a day. If the API lacks the price or fails, which is logged, return
        the table's price for us-east-1, and ask the API again after an hour. Without a region,
        return the table's price without a request.
        """
        wanted = {**_INSTANCE, "instanceType": instance_type}
        fallback = self._table.instance_hour(instance_type, region)
        return self._price(instance_type, region, wanted, "Hrs", fallback)

    def disk_gib_month(self, region: str) -> float:
        """Return the price of a GiB of a gp3 disk for a month in dollars.

        Read from the API once a day. If the API lacks the price or fails, which is logged, return
        the table's price for us-east-1, and ask the API again after an hour. Without a region,
        return the table's price without a request.
        """
        return self._price("gp3", region, _DISK, "GB-Mo", self._table.disk_gib_month(region))

    def _price(
        self, name: str, region: str, wanted: Mapping[str, str], unit: str, fallback: float
    ) -> float:
        """Return the cached or newly read price of a product, or else `fallback`.

        A price from the API is cached for PRICES_TTL_MS, `fallback` for UNKNOWN_TTL_MS. A price of
        0 from the API counts as missing. Without a region, the API is not asked. A failed request
        is logged and raises nothing.

        Args:
            name: the product's name in the cache.
            region: the region, or "".
            wanted: the attributes that select the product.
            unit: the API's unit of the price, such as `Hrs`.
            fallback: the price if the API has none or fails.
        """
        known = self._known.get((name, region))
        if known is None or self._clock() >= known.until_ms:
            price = self._read_price({**wanted, "regionCode": region}, unit) if region else 0.0
            ttl_ms = PRICES_TTL_MS if price else UNKNOWN_TTL_MS
            known = _CachedPrice(self._clock() + ttl_ms, price or fallback)
            self._known[name, region] = known
        return known.price

    def _read_price(self, wanted: Mapping[str, str], unit: str) -> float:
        """Read the highest price in dollars of the first 100 matching products.

        Return 0 if no product matches. Log a failed request or an unexpected answer, and return 0.
        The client of the API is created at the first call and kept.

        Args:
            wanted: the attributes that the products must have.
            unit: the unit of the price, such as `Hrs`; other prices do not count.
        """
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
        except (*_FAILURES, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("using a list price from the built-in table: %s", type(error).__name__)
            return 0.0


def _product_price(text: str, unit: str) -> float:
    """Return the highest on-demand price with this unit in a product's JSON, or 0.

    Prices in other currencies than dollars are not read. Raises ValueError, KeyError, TypeError or
    AttributeError for an unexpected form.
    """
    terms = json.loads(text)["terms"].get("OnDemand", {})
    prices = [
        float(dimension["pricePerUnit"]["USD"])
        for term in terms.values()
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == unit
    ]
    return max(prices, default=0.0)
