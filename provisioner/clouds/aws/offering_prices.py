"""The prices of a pool's offerings on EC2: list prices, and the spot market's."""

import logging
from collections.abc import Callable
from dataclasses import replace

from control_plane.aws.instance_types import on_demand_price
from control_plane.fleet.records import Market, Offering
from provisioner.clouds.aws.ec2_api import (
    PAGE_SIZE,
    Ec2Api,
    epoch_ms,
    read_pages,
    translate_errors,
)
from provisioner.clouds.provider import CloudError
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)

PRICES_TTL_MS = 60 * MINUTE_MS
# Where EC2 gave no spot prices they are those on demand, and are asked for again after so long.
UNKNOWN_PRICES_TTL_MS = MINUTE_MS
PRICE_HISTORY_SECONDS = 3600


class OfferingPrices:
    """Adds prices to offerings that have none, and caches them. `clock` gives epoch ms."""

    def __init__(
        self, api: Ec2Api, offerings: Callable[[], tuple[Offering, ...]], clock: Callable[[], int]
    ) -> None:
        self._api = api
        self._offerings = offerings
        self._clock = clock
        self._cached: tuple[int, tuple[Offering, ...]] = (0, ())

    def offerings(self) -> tuple[Offering, ...]:
        """The offerings with prices at most an hour old; unknown ones are asked for again a minute
        later.
        """
        until_ms, offerings = self._cached
        if self._clock() >= until_ms:
            ttl_ms, offerings = self._read_prices()
            self._cached = (self._clock() + ttl_ms, offerings)
        return offerings

    def _read_prices(self) -> tuple[int, tuple[Offering, ...]]:
        """For how long the prices hold (ms), and the offerings with them."""
        offerings = self._offerings()
        unknown = [it for it in offerings if not it.price_per_hour]
        spot = self._spot_prices({it.instance_type for it in unknown if it.market is Market.SPOT})
        with_prices = tuple(
            it if it.price_per_hour else replace(it, price_per_hour=_price(it, spot or {}))
            for it in offerings
        )
        return UNKNOWN_PRICES_TTL_MS if spot is None else PRICES_TTL_MS, with_prices

    def _spot_prices(self, types: set[str]) -> dict[tuple[str, str], float] | None:
        """Current spot prices by type and zone; None where EC2 does not give any."""
        if not types:
            return {}
        # What is in force was published before, and our clock may go ahead of theirs.
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
                history = [it for page in pages for it in page["SpotPriceHistory"]]
        except CloudError as error:
            log.warning("spot prices are not known and taken to be those on demand: %s", error)
            return None
        history.sort(key=lambda it: epoch_ms(it["Timestamp"]))
        return {
            (it["InstanceType"], it["AvailabilityZone"]): float(it["SpotPrice"]) for it in history
        }


def _price(offering: Offering, spot: dict[tuple[str, str], float]) -> float:
    """Dollars an hour. Where the zone is open, the highest of any: no bill comes as a surprise."""
    most = on_demand_price(offering.instance_type)
    if offering.market is Market.ON_DEMAND:
        return most
    zones = [
        price
        for (instance_type, zone), price in spot.items()
        if instance_type == offering.instance_type and offering.zone in ("", zone)
    ]
    return max(zones, default=most)
