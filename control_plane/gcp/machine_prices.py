"""The list prices of Compute Engine's machines in us-central1, a table as of 2025-10. Pure.

The configuration names prices with this table before anything is launched, when no cloud can be
asked. The provisioner uses the table if the Cloud Billing Catalog has no price.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from control_plane.fleet.records import Market
from control_plane.gcp.machine_types import N1_TYPES, parse_instance_type


class _Prices(NamedTuple):
    """Hourly prices in dollars on both markets. Google changes spot prices once a month at most."""

    on_demand: float
    spot: float = 0.0
    """The spot price; 0 if unknown."""

    def price(self, market: Market) -> float:
        """Return the price on a market; 0 for an unknown spot price."""
        return self.spot if market is Market.SPOT else self.on_demand


# Source: Google's price list as of 2025-10, in Kubernetes' cluster autoscaler.
_MACHINES: Final[Mapping[str, _Prices]] = {
    "a2-highgpu-1g": _Prices(3.673385, 1.102016),
    "a2-highgpu-2g": _Prices(7.34677, 2.204031),
    "a2-highgpu-4g": _Prices(14.69354, 4.408062),
    "a2-highgpu-8g": _Prices(29.38708, 8.816124),
    "a2-megagpu-16g": _Prices(55.739504, 16.721851),
    "a2-ultragpu-1g": _Prices(5.0688, 1.6),
    "a2-ultragpu-2g": _Prices(10.1376, 3.2),
    "a2-ultragpu-4g": _Prices(20.2752, 6.4),
    "a2-ultragpu-8g": _Prices(40.5504, 12.8),
    "a3-highgpu-8g": _Prices(88.49),
    "g2-standard-4": _Prices(0.76, 0.23),
    "g2-standard-8": _Prices(0.91, 0.27),
    "g2-standard-12": _Prices(1.06, 0.32),
    "g2-standard-16": _Prices(1.20, 0.36),
    "g2-standard-24": _Prices(2.11, 0.63),
    "g2-standard-32": _Prices(1.79, 0.54),
    "g2-standard-48": _Prices(4.23, 1.27),
    "g2-standard-96": _Prices(8.46, 2.54),
}
_ACCELERATORS: Final[Mapping[str, _Prices]] = {
    "nvidia-tesla-t4": _Prices(0.35, 0.11),
    "nvidia-tesla-v100": _Prices(2.48, 0.74),
    "nvidia-tesla-p100": _Prices(1.46, 0.43),
    "nvidia-tesla-p4": _Prices(0.60, 0.216),
}
_N1_VCPU: Final = _Prices(0.031611, 0.006655)
_N1_GB: Final = _Prices(0.004237, 0.000892)


def list_price(instance_type: str, market: Market) -> float:
    """Return the price in us-central1 of an instance type for an hour in dollars, or 0 if unknown.

    The price includes attached accelerators, and is 0 if the price of one is unknown. Use the
    machine's on-demand price if its spot price is unknown; accelerators keep the price of the
    market. The price is rounded to 6 digits.
    """
    instance = parse_instance_type(instance_type)
    if instance is None:
        return 0.0
    machine = _machine_prices(instance.machine_type)
    attached = _ACCELERATORS.get(instance.accelerator)
    if machine is None or (instance.number and attached is None):
        return 0.0
    more = instance.number * attached.price(market) if attached else 0.0
    price = machine.price(market) + more
    return round(price if machine.price(market) else machine.on_demand + more, 6)


def _machine_prices(machine_type: str) -> _Prices | None:
    """Return the hourly prices of a machine without extra accelerators. Return None if unknown.

    The accelerators that belong to the machine type are included. The price of an N1 type is the
    sum for vCPUs and memory. The spot price is 0 if unknown.
    """
    known = _MACHINES.get(machine_type)
    if known is not None or machine_type not in N1_TYPES:
        return known
    n1 = N1_TYPES[machine_type]
    on_demand, spot = (
        n1.vcpus * vcpu + n1.memory_gb * gb for vcpu, gb in zip(_N1_VCPU, _N1_GB, strict=True)
    )
    return _Prices(on_demand, spot)
