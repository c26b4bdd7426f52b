"""Lists of addresses of a cluster's servers, separated by commas."""

from __future__ import annotations


def split_addresses(addresses: str) -> list[str]:
    """Return the addresses in a text with commas, without spaces and slashes at the ends.

    Return the text itself as the only address if it has no address.
    """
    found = [address.strip().rstrip("/") for address in addresses.split(",")]
    return [address for address in found if address] or [addresses]
