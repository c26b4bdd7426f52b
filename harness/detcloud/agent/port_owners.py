"""The programs that listen on a port of this machine, and the check of the programs' trial.

Trials share the machine's network, so a tunnel to a trial must not reach another trial's program.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PROC = Path("/proc")
_LISTENING = "0A"
_SOCKET = "socket:["


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens on a port."""

    address: str
    """The address of this machine at which a connection reaches the socket."""
    inode: int
    """The number by which descriptors of processes name the socket."""


def find_listeners(port: int, proc: Path = PROC) -> list[Listener]:
    """Return the sockets that listen on a TCP port of this machine, over IPv4 and IPv6.

    Return an empty list on systems without /proc.
    """
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), (proc / "net" / name).open() as table:
            next(table, None)
            for line in table:
                listener = _parse_listener(line, port)
                if listener is not None:
                    found.append(listener)
    return found


def are_owned(listeners: Iterable[Listener], processes: Iterable[int], proc: Path = PROC) -> bool:
    """Return whether each socket is a descriptor of any of the processes.

    False without a socket. Ended processes, and processes of other users that this process cannot
    read, count as owners of nothing.
    """
    missing = {listener.inode for listener in listeners}
    if not missing:
        return False
    for process in processes:
        missing -= _socket_inodes(proc / str(process) / "fd")
        if not missing:
            return True
    return False


def _parse_listener(line: str, port: int) -> Listener | None:
    """Parse a line of /proc/net/tcp or tcp6. Return None unless it is a listener on the port."""
    fields = line.split()
    if len(fields) < 10 or fields[3] != _LISTENING:
        return None
    address, _, number = fields[1].partition(":")
    if int(number, 16) != port:
        return None
    return Listener(_parse_address(bytes.fromhex(address)), int(fields[9]))


def _parse_address(stored: bytes) -> str:
    """Return the address for a connection to a listener.

    The kernel stores words of four bytes in the order of the processor. An unspecified address is
    reached over the loopback address.
    """
    words = [stored[start : start + 4] for start in range(0, len(stored), 4)]
    ordered = b"".join(word[::-1] for word in words) if sys.byteorder == "little" else stored
    address = IPv4Address(ordered) if len(ordered) == 4 else IPv6Address(ordered)
    if address.is_unspecified:
        return "127.0.0.1" if len(ordered) == 4 else "::1"
    return str(address)


def _socket_inodes(descriptors: Path) -> set[int]:
    """Return the inodes of the sockets that a process has open."""
    inodes = set()
    with contextlib.suppress(OSError), os.scandir(descriptors) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                target = str(Path(entry.path).readlink())
                if target.startswith(_SOCKET):
                    inodes.add(int(target[len(_SOCKET) : -1]))
    return inodes
