"""The services of an allocation, which a tunnel opens by name instead of by port.

`location` returns the file with address and secret of a notebook or shell. So the secret passes
only through the encrypted session, and is in no row of the cluster. `ssh` starts an SSH server in
the allocation, whose connection is the stream. `debugger` leads in the same way to the debugger of
a trial, and `folder` to a server of the files in the trial's working directory. So no port of the
machine listens.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from typing import TYPE_CHECKING

from detcloud.shared.tunnel.multiplexer import ResetReason
from detcloud.shared.tunnel.services import DEBUGGER, FOLDER, LOCATION, LOCATION_BYTES_MAX, SSH

if TYPE_CHECKING:
    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.node import Node

MODULES = {
    SSH: "detcloud.launch.ssh.serve",
    DEBUGGER: "detcloud.launch.debugger_bridge",
    FOLDER: "detcloud.launch.folder_server",
}
"""The modules that serve a connection as a process in the allocation, by service."""
SERVERS_MAX = 64
"""The most such processes of an allocation, because users share the agent."""
LOCATION_NAMES = ("notebook.json", "shell.json")
"""The files that `detcloud.launch.location` writes in the trial's home, the first found wins."""


class TunnelServices:
    """The services of a node's allocations. The threads of all tunnels share the object."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        # The connections with processes, by allocation. A tunnel closes its connections.
        self._servers: dict[str, list[socket.socket]] = {}

    def open(self, allocation: str, service: str) -> socket.socket | ResetReason:
        """Return a connected socket of a service of an allocation.

        Return the reason of a refusal for an unknown service, an ended or starting allocation, a
        service that is not available, and after SERVERS_MAX processes. Raise OSError if the machine
        cannot start another process.
        """
        if service == LOCATION:
            return self._open_location(allocation)
        module = MODULES.get(service)
        if module is None:
            return ResetReason.UNKNOWN_SERVICE
        return self._open_module(allocation, module)

    def _open_location(self, allocation: str) -> socket.socket | ResetReason:
        """Return a socket from which the location file can be read."""
        directory = self._node.active_directory(allocation)
        content = None if directory is None else read_location(directory)
        if content is None:
            return ResetReason.NOT_READY
        served, writer = socket.socketpair()
        with writer:
            # The buffer of a new socket holds LOCATION_BYTES_MAX bytes, so this does not block.
            writer.sendall(content)
        return served

    def _open_module(self, allocation: str, module: str) -> socket.socket | ResetReason:
        """Return the connection of a new process of a module in the allocation."""
        with self._lock:
            for name, servers in list(self._servers.items()):
                # A closed socket has no descriptor.
                self._servers[name] = [one for one in servers if one.fileno() >= 0]
                if not self._servers[name]:
                    del self._servers[name]
            servers = self._servers.setdefault(allocation, [])
            if len(servers) >= SERVERS_MAX:
                return ResetReason.NO_ROOM
            try:
                served = self._node.spawn(allocation, module)
            except FileNotFoundError:
                # The allocation is starting, for example pulling an image.
                served = None
            if served is None:
                return ResetReason.NOT_READY
            servers.append(served)
            return served


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
