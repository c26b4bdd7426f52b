"""List prices of Compute Engine in us-central1, a built-in table as of 2025-10."""

from typing import Final, Protocol

from control_plane.fleet.records import Market
from control_plane.gcp.machine_prices import list_price
from control_plane.gcp.machine_types import NONE_DESCRIBED, MachineTypes

HOURS_PER_MONTH: Final = 730
# Dollars per hour for a public IPv4 address in use.
PUBLIC_ADDRESS_HOUR: Final = {Market.ON_DEMAND: 0.005, Market.SPOT: 0.0025}


# Dollars per month for a GiB of each disk type.
_DISKS: Final = {
    "pd-standard": 0.04,
    "pd-balanced": 0.10,
    "pd-ssd": 0.17,
    "hyperdisk-balanced": 0.08,
}


class PriceSource(Protocol):
    """A source of list prices, in dollars."""

    def instance_hour(
        self,
        instance_type: str,
        market: Market,
        region: str,
        described: MachineTypes = NONE_DESCRIBED,
    ) -> float:
        """Return the price of an instance type for an hour, or 0 if unknown.

        `described` has machine types that the catalogue lacks. The price may be that of another
        region or market. Failed requests for prices raise nothing.
        """

    def disk_gib_month(self, disk_type: str, region: str) -> float:
        """Return the price of a GiB of a boot disk for a month, or 0 for an unknown disk type."""


class PriceTable:
    """The built-in table of us-central1's prices, which are estimates for other regions."""

    def instance_hour(
        self,
        instance_type: str,
        market: Market,
        region: str,
        described: MachineTypes = NONE_DESCRIBED,
    ) -> float:
        """Return the price in us-central1 of an instance type for an hour, or 0 if unknown.

        The price is the sum for the machine and the attached accelerators, in dollars, rounded to 6
        digits. `region` and `described` are ignored. On the spot market, a machine with an unknown
        spot price has the on-demand price. An accelerator always has the spot price then. Return 0
        for a text that is no instance type, an unknown machine, or an unknown accelerator.
        """
        return list_price(instance_type, market)

    def disk_gib_month(self, disk_type: str, region: str) -> float:
        """Return the price in us-central1 of a GiB of a boot disk for a month, or 0 if unknown.

        The price is in dollars; `region` is ignored.
        """
        return _DISKS.get(disk_type, 0.0)
