"""The ranges of addresses of a network that is made for a cluster."""

import ipaddress
from typing import Final

RANGE: Final = ipaddress.ip_network("10.64.0.0/12")
SUBNETWORK_BITS: Final = 16


def subnetwork_ranges() -> list[str]:
    """Return the ranges of a network's subnetworks, in the order of its regions."""
    return [str(block) for block in RANGE.subnets(new_prefix=SUBNETWORK_BITS)]
