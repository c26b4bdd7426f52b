"""The hourly prices of a pool's Compute Engine offerings.

A price is the instance's list price, plus its boot disk and its public address.
"""

from collections.abc import Callable
from dataclasses import replace

from control_plane.fleet.records import Offering
from control_plane.gcp.machine_types import boot_disk_type
from provisioner.clouds.gcp.launch_request import GceSettings
from provisioner.clouds.gcp.price_list import HOURS_PER_MONTH, PUBLIC_ADDRESS_HOUR, PriceSource
from provisioner.model import MINUTE_MS

PRICES_TTL_MS = 60 * MINUTE_MS


class OfferingPrices:
    """The prices of a pool's offerings, cached. `clock` returns epoch milliseconds."""

    def __init__(
        self,
        offerings: Callable[[], tuple[Offering, ...]],
        settings: Callable[[], GceSettings],
        prices: PriceSource,
        clock: Callable[[], int],
    ) -> None:
        self._offerings_of_settings = offerings
        self._settings = settings
        self._prices = prices
        self._clock = clock
        self._cached: tuple[int, tuple[Offering, ...]] = (0, ())

    def offerings(self) -> tuple[Offering, ...]:
        """Return the pool's offerings with hourly prices in dollars.

        An offering without a price in the settings gets the list price with disk and address, or 0
        if unknown. Results, also unknown prices, are cached for PRICES_TTL_MS; errors are not. The
        source of prices may ask Google. Raises ConfigurationError for invalid settings, also if all
        offerings have prices.
        """
        until_ms, offerings = self._cached
        if self._clock() >= until_ms:
            settings = self._settings()
            offerings = tuple(
                offering
                if offering.price_per_hour
                else replace(offering, price_per_hour=self._price(offering, settings))
                for offering in self._offerings_of_settings()
            )
            self._cached = (self._clock() + PRICES_TTL_MS, offerings)
        return offerings

    def _price(self, offering: Offering, settings: GceSettings) -> float:
        """Return an offering's hourly price in dollars with disk and address, or 0 if unknown.

        A disk with an unknown price counts as 0. The address counts if the settings give instances
        a public address. A type with an unknown price gives 0, whatever the disk costs. The result
        is rounded to 6 digits. Raises ConfigurationError if no region is known.
        """
        region = settings.place
        price = self._prices.instance_hour(
            offering.instance_type, offering.market, region, settings.machine_types
        )
        if not price:
            return 0.0
        machine_type = offering.instance_type.partition("+")[0]
        disk = settings.boot_disk_type or boot_disk_type(machine_type)
        gib_month = self._prices.disk_gib_month(disk, region)
        public = settings.network_interface.external_ip
        address = PUBLIC_ADDRESS_HOUR[offering.market] if public else 0.0
        return round(price + gib_month * settings.boot_disk_size / HOURS_PER_MONTH + address, 6)
