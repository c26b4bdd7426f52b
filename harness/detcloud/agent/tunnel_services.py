"""The services of an allocation, which a tunnel opens by name instead of by port.

`location` returns the file with address and secret of a notebook or shell. So the secret passes
only through the encrypted session, and is in no row of the cluster. `ssh` starts an SSH server in
the allocation, whose connection is the stream. So no port of the machine listens.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

from detcloud.shared.tunnel.multiplexer import ResetReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.node import Node

LOCATION = "location"
SSH = "ssh"
SSH_MODULE = "detcloud.launch.ssh.serve"
LOCATION_BYTES_MAX = 4_096
LOCATION_NAMES = ("notebook.json", "shell.json")
"""The files that `detcloud.launch.location` writes in the trial's home, the first found wins."""


def open_service(node: Node, allocation: str, service: str) -> socket.socket | ResetReason:
    """Return a connected socket of a service of an allocation.

    Return the reason of a refusal for an unknown service, an ended allocation, or a service that is
    not available. Raise OSError if the machine has no room for another connection.
    """
    opener = _SERVICES.get(service)
    if opener is None:
        return ResetReason.UNKNOWN_SERVICE
    return opener(node, allocation) or ResetReason.NOT_READY


def read_location(directory: AllocationDirectory) -> bytes | None:
    """Return the location file of an allocation's notebook or shell.

    The trial could replace its file by a link to a foreign file, which the agent may be able to
    read. So links, files of other users, files with other names and large files count as missing.
    Return None if no file is left.
    """
    owner = os.getuid() if directory.owner is None else directory.owner[0]
    try:
        home = os.open(directory.home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for name in LOCATION_NAMES:
            if content := _read_own_file(home, name, owner):
                return content
    finally:
        os.close(home)
    return None


def _open_location(node: Node, allocation: str) -> socket.socket | None:
    """Return a socket from which the location file can be read. None without a valid file."""
    directory = node.active_directory(allocation)
    content = None if directory is None else read_location(directory)
    if content is None:
        return None
    served, writer = socket.socketpair()
    with writer:
        # The buffer of a new socket holds LOCATION_BYTES_MAX bytes, so this does not block.
        writer.sendall(content)
    return served


def _open_ssh(node: Node, allocation: str) -> socket.socket | None:
    """Return the connection of a new SSH server in the allocation. None for an ended allocation."""
    return node.spawn(allocation, SSH_MODULE)


def _read_own_file(folder: int, name: str, owner: int) -> bytes | None:
    """Return a file of at most LOCATION_BYTES_MAX bytes that belongs to the user `owner`.

    Return None for a missing file, a link, a file with a second name, and any other file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == owner
            if not is_own or status.st_nlink != 1 or status.st_size > LOCATION_BYTES_MAX:
                return None
            return file.read(LOCATION_BYTES_MAX)
    except OSError:
        return None


_SERVICES: Mapping[str, Callable[[Node, str], socket.socket | None]] = {
    LOCATION: _open_location,
    SSH: _open_ssh,
}
