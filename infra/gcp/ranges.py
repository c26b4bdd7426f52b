"""The address ranges of the network that is created for a cluster."""

import ipaddress
from typing import Final

RANGE: Final = ipaddress.ip_network("10.64.0.0/12")
SUBNETWORK_BITS: Final = 16


def subnetwork_ranges() -> list[str]:
    """Return sixteen address ranges (CIDR) for subnetworks, in the order of the regions."""
    return [str(block) for block in RANGE.subnets(new_prefix=SUBNETWORK_BITS)]
