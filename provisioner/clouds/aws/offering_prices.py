"""The hourly prices of a pool's EC2 offerings.

A price is the instance's list price or spot price, plus its disk and its public address.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from control_plane.fleet.records import Market, Offering
from provisioner.clouds.aws.ec2_api import (
    PAGE_SIZE,
    Ec2Api,
    epoch_ms,
    read_pages,
    translate_errors,
)
from provisioner.clouds.aws.launch_request import (
    DISK_IOPS,
    DISK_THROUGHPUT,
    Ec2Settings,
    Subnet,
)
from provisioner.clouds.aws.price_list import (
    HOURS_PER_MONTH,
    PUBLIC_ADDRESS_HOUR,
    PriceSource,
)
from provisioner.clouds.provider import CloudError
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)

PRICES_TTL_MS = 60 * MINUTE_MS
# Without spot prices from EC2, on-demand prices are used for this time.
UNKNOWN_PRICES_TTL_MS = MINUTE_MS
PRICE_HISTORY_SECONDS = 3600
# The price of an extra operation per second, and of an extra MiB/s, in GiB of equal price. A month
# of gp3 in us-east-1 cost 0.08 $ for a GiB, 0.005 $ for an operation per second and 0.04 $ for a
# MiB/s as of 2025-06.
GIB_FOR_AN_OPERATION = 0.005 / 0.08
GIB_FOR_A_MIB = 0.04 / 0.08


@dataclass(frozen=True, slots=True)
class PricedPool:
    """Functions that return the facts on which a pool's prices depend."""

    offerings: Callable[[], tuple[Offering, ...]]
    """Returns the pool's offerings. Raises ConfigurationError."""
    settings: Callable[[], Ec2Settings]
    """Returns the pool's settings. Raises ConfigurationError."""
    subnets: Callable[[], Sequence[Subnet]]
    """Returns the pool's subnets. Raises CloudError."""


class _PricedOfferings(NamedTuple):
    """A pool's offerings with hourly prices in dollars; an unknown price is 0."""

    offerings: tuple[Offering, ...]
    ttl_ms: int
    """The time to cache the prices, which is short after a failed request for spot prices."""


class OfferingPrices:
    """The prices of a pool's offerings, cached. `clock` returns epoch milliseconds."""

    def __init__(
        self, api: Ec2Api, pool: PricedPool, prices: PriceSource, clock: Callable[[], int]
    ) -> None:
        self._api = api
        self._pool = pool
        self._prices = prices
        self._clock = clock
        self._cached: tuple[int, tuple[Offering, ...]] = (0, ())

    def offerings(self) -> tuple[Offering, ...]:
        """Return the pool's offerings, with hourly prices added where the settings have no price.

        Prices are in dollars; an unknown price is 0. Prices are cached for PRICES_TTL_MS, or for
        UNKNOWN_PRICES_TTL_MS if the request for spot prices failed. Failed price requests are
        logged; the price is then the on-demand price, or that of the built-in table. Raises
        ConfigurationError for invalid settings, which is not cached.
        """
        until_ms, offerings = self._cached
        if self._clock() >= until_ms:
            read = self._read_prices()
            offerings = read.offerings
            self._cached = (self._clock() + read.ttl_ms, offerings)
        return offerings

    def _read_prices(self) -> _PricedOfferings:
        """Return the pool's offerings, with prices where the settings have no price.

        The result also has the time to cache the prices, which is UNKNOWN_PRICES_TTL_MS after a
        failed request for spot prices. Spot prices are read from EC2 if a spot offering has no
        price in the settings. If EC2 gives any spot price, the subnets are read too. Failed
        requests are logged. The order of the offerings stays. Raises ConfigurationError for invalid
        settings.
        """
        offerings = self._pool.offerings()
        unknown = [offering for offering in offerings if not offering.price_per_hour]
        spot = self._spot_prices(
            {offering.instance_type for offering in unknown if offering.market is Market.SPOT}
        )
        settings, zones = self._pool.settings(), self._zones_in_use() if spot else frozenset()
        with_prices = tuple(
            offering
            if offering.price_per_hour
            else replace(
                offering, price_per_hour=self._price(offering, settings, spot or {}, zones)
            )
            for offering in offerings
        )
        ttl_ms = UNKNOWN_PRICES_TTL_MS if spot is None else PRICES_TTL_MS
        return _PricedOfferings(with_prices, ttl_ms)

    def _zones_in_use(self) -> frozenset[str]:
        """Return the zones of the pool's subnets.

        If EC2's call fails, or the settings are invalid, log this and return the empty set.
        """
        try:
            return frozenset(subnet.zone for subnet in self._pool.subnets())
        except CloudError as error:
            log.info("using the spot prices of all zones: %s", error)
            return frozenset()

    def _price(
        self,
        offering: Offering,
        settings: Ec2Settings,
        spot: dict[tuple[str, str], float],
        zones: Collection[str],
    ) -> float:
        """Return an offering's price per hour with disk and address, in dollars, or 0 if unknown.

        A spot offering without a spot price in its zones gets the on-demand price. A spot offering
        without a zone gets the highest price in `zones`, or in any zone if `zones` is empty. The
        result is rounded to 6 digits. The source of list prices may ask AWS.

        Args:
            offering: the offering.
            settings: the pool's settings, with region, disk and network.
            spot: the spot prices by type and zone.
            zones: the zones of the pool's subnets.
        """
        price = self._prices.instance_hour(offering.instance_type, settings.region)
        if offering.market is Market.SPOT:
            price = max(_spot_prices_in(offering, spot, zones), default=price)
        return round(price + self._disk_and_address_hour(settings), 6) if price else 0.0

    def _disk_and_address_hour(self, settings: Ec2Settings) -> float:
        """Return the price of an instance's disk and public address for an hour, in dollars.

        The address counts if the settings give instances a public address. Operations and
        throughput of the disk above the included ones count.
        """
        gib_month = self._prices.disk_gib_month(settings.region)
        # Extra disk performance is assumed to vary between regions like the price of a GiB.
        month = gib_month * (settings.root_volume_size + _extra_disk_gib(settings))
        address = PUBLIC_ADDRESS_HOUR if settings.network_interface.public_ip else 0.0
        return month / HOURS_PER_MONTH + address

    def _spot_prices(self, types: set[str]) -> dict[tuple[str, str], float] | None:
        """Return the current spot prices by type and zone, in dollars per hour.

        If EC2's call fails, log this and return None. Without types, return an empty map without a
        call. A type without a price has no entry. Of several prices, the latest counts.
        """
        if not types:
            return {}
        # EC2 returns the last price before the start time too; the margin is for a clock ahead.
        since = self._clock() / 1000 - PRICE_HISTORY_SECONDS
        try:
            with translate_errors():
                pages = read_pages(
                    self._api.describe_spot_price_history,
                    InstanceTypes=sorted(types),
                    ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
                    StartTime=since,
                    MaxResults=PAGE_SIZE,
                )
                history = [item for page in pages for item in page["SpotPriceHistory"]]
        except CloudError as error:
            log.warning("spot prices are unknown, using on-demand prices: %s", error)
            return None
        history.sort(key=lambda item: epoch_ms(item["Timestamp"]))
        return {
            (item["InstanceType"], item["AvailabilityZone"]): float(item["SpotPrice"])
            for item in history
        }


def _spot_prices_in(
    offering: Offering, spot: Mapping[tuple[str, str], float], zones: Collection[str]
) -> list[float]:
    """Return the known spot prices of an offering in the usable zones.

    The usable zones are the offering's zone, or else `zones`, or else all zones. `spot` has the
    prices by type and zone. Empty without a known price.
    """
    usable = {offering.zone} if offering.zone else zones
    return [
        value
        for (instance_type, zone), value in spot.items()
        if instance_type == offering.instance_type and (not usable or zone in usable)
    ]


def _extra_disk_gib(settings: Ec2Settings) -> float:
    """Return the fractional number of GiB that cost as much as a root disk's extra performance.

    Return 0 for the operations and the throughput that the price of a gp3 disk includes.
    """
    operations = settings.root_volume_iops - DISK_IOPS
    throughput = settings.root_volume_throughput - DISK_THROUGHPUT
    return operations * GIB_FOR_AN_OPERATION + throughput * GIB_FOR_A_MIB
