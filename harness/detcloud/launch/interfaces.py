"""The network interface by which this machine is reached, for libraries that ask for its name."""

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
    """The interface that has the address of `host`; None where none has it, and but on Linux."""
    if sys.platform != "linux":
        return None
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        wanted = {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries}
    except (OSError, ValueError):
        return None
    if any(address.is_loopback for address in wanted):
        # All of 127.0.0.0/8 is its, though it has one address alone.
        return "lo"
    return next((name for name, address in _list_addresses() if address in wanted), None)


def _list_addresses() -> Iterator[tuple[str, IpAddress]]:
    """The interfaces with their addresses of both versions."""
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
