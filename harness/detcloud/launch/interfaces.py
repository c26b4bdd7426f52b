"""The name of the network interface by which other machines reach this machine."""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
INET6_FILE = Path("/proc/net/if_inet6")
_SIOCGIFCONF = 0x8912
# A name of 16 bytes, and an address of family, port and 4 bytes in a union of 24.
_RECORD_BYTES, _NAME_BYTES, _ADDRESS_AT = 40, 16, 20
_RECORDS_MAX = 256


def interface_of(host: str) -> str | None:
    """Return the name of the interface that has the address of `host`, or `lo` for the loopback.

    Return None if no interface has the address, if `host` cannot be resolved, and outside of Linux.
    """
    if sys.platform != "linux":
        return None
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        wanted = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries}
    except (OSError, ValueError):
        return None
    if any(address.is_loopback for address in wanted):
        # The loopback interface receives all of 127.0.0.0/8, but lists a single address.
        return "lo"
    return next((name for name, address in _list_addresses() if address in wanted), None)


def _list_addresses() -> Iterator[tuple[str, IpAddress]]:
    """Yield a pair for each address of a network interface: the interface's name and the address.

    Addresses are IPv4, then IPv6. Omit a kind of addresses that the system cannot list.
    """
    records = array.array("B", bytes(_RECORD_BYTES * _RECORDS_MAX))
    request = struct.pack("iL", len(records), records.buffer_info()[0])
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        size = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))[0]
        content = records.tobytes()
        for at in range(0, size, _RECORD_BYTES):
            alias = content[at : at + _NAME_BYTES].partition(b"\0")[0].decode()
            address = content[at + _ADDRESS_AT : at + _ADDRESS_AT + 4]
            yield alias.partition(":")[0], ipaddress.IPv4Address(address)
    with contextlib.suppress(OSError, ValueError):
        for line in INET6_FILE.read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            yield name, ipaddress.IPv6Address(int(digits, 16))
