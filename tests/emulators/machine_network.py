"""A network of machines in Linux namespaces: each machine has an address, and may have a firewall.

    machine 10.96.0.2 ─┐
    machine 10.96.0.3 ─┴─ bridge in the namespace `switch`

Only forwarded ports lead out of the network: a listener on each machine's loopback passes
connections to the same port of the loopback of the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

HOST = "127.0.0.1"
PIPE_BYTES = 64 * 1024
_NAMESPACES = Path("/run/netns")
_SWITCH = "switch"
_CLONE_NEWNET = 0x40000000
_networks = itertools.count(1)


class MachineNetwork:
    """A network in which every machine has an address. Methods may be called from any thread.

    Without root or `ip`, each machine is an address of the loopback of the tests.
    """

    def __init__(self, cleanup: ExitStack) -> None:
        """Make the network. `cleanup` removes the network."""
        self._cleanup = cleanup
        self._lock = threading.Lock()
        self._hosts: dict[str, int] = {}
        self._ports: set[int] = set()
        self._name = f"detcloud-{os.getpid()}-{next(_networks)}"
        self.is_namespaced = os.getuid() == 0 and self._make_namespace(_SWITCH)
        """Whether machines are namespaces. Otherwise they are addresses of the loopback."""
        if self.is_namespaced:
            self._ip("link", "add", "bridge", "type", "bridge", place=_SWITCH)
            self._ip("address", "add", "10.96.0.1/24", "dev", "bridge", place=_SWITCH)
            self._ip("link", "set", "bridge", "up", place=_SWITCH)

    @property
    def has_firewalls(self) -> bool:
        """Whether `drop_connections` works on this system."""
        return self.is_namespaced and shutil.which("iptables") is not None

    def add(self, name: str) -> None:
        """Make a machine, unless it exists."""
        with self._lock:
            if name in self._hosts:
                return
            self._hosts[name] = len(self._hosts) + 2
            if self.is_namespaced:
                self._add_namespace(name)
                for port in self._ports:
                    self._listen_on(name, port)

    def forward(self, port: int) -> None:
        """Let the port of every machine's loopback lead to the port of the loopback of the tests.

        The rule also applies to later machines. A forwarded port stays forwarded.
        """
        with self._lock:
            if port not in self._ports:
                self._ports.add(port)
                for name in self._hosts if self.is_namespaced else ():
                    self._listen_on(name, port)

    def address_of(self, name: str) -> str:
        """Return the address of a machine."""
        host = self._hosts[name]
        return f"10.96.0.{host}" if self.is_namespaced else f"127.0.0.{host}"

    def drop_connections(self, name: str) -> None:
        """Let the firewall of a machine drop all packets of connections that others begin.

        Requires `has_firewalls`.
        """
        answers = ("INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
        for rule in (
            ("-A", "INPUT", "-i", "lo", "-j", "ACCEPT"),
            ("-A", *answers),
            ("-P", "INPUT", "DROP"),
        ):
            command = self.command_on(name, ["iptables", *rule])
            subprocess.run(command, check=True, capture_output=True)

    def command_on(self, name: str, command: list[str]) -> list[str]:
        """Return a command, wrapped to run on a machine. The switch is a machine as well."""
        entered = ["nsenter", f"--net={_NAMESPACES / self._full_name(name)}"]
        return [*(entered * self.is_namespaced), *command]

    def place_of(self, name: str) -> Path:
        """Return the file of a machine's namespace."""
        return _NAMESPACES / self._full_name(name)

    def _add_namespace(self, name: str) -> None:
        assert self._make_namespace(name)
        port, switch, machine = f"to-{self._hosts[name]}", *map(self._full_name, (_SWITCH, name))
        ends = ("name", port, "netns", switch, "type", "veth", "peer", "name", "eth0")
        self._ip("link", "add", *ends, "netns", machine)
        self._ip("link", "set", port, "master", "bridge", "up", place=_SWITCH)
        self._ip("address", "add", f"{self.address_of(name)}/24", "dev", "eth0", place=name)
        for device in ("eth0", "lo"):
            self._ip("link", "set", device, "up", place=name)

    def _listen_on(self, name: str, port: int) -> None:
        machine = _NAMESPACES / self._full_name(name)
        self._cleanup.callback(ForwardedPort(machine, port).close)

    def _make_namespace(self, place: str) -> bool:
        name = self._full_name(place)
        try:
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        except OSError:
            return False
        if done.returncode == 0:
            self._cleanup.callback(self._ip, "netns", "delete", name)
        return done.returncode == 0

    def _full_name(self, place: str) -> str:
        return f"{self._name}-{place}"

    def _ip(self, *words: str, place: str = "") -> None:
        within = ["-n", self._full_name(place)] if place else []
        subprocess.run(["ip", *within, *words], check=True, capture_output=True)


def port_of(url: str) -> int:
    """Return the port of a URL of the tests' loopback."""
    place = urlsplit(url)
    assert place.hostname in (HOST, "localhost"), url
    assert place.port is not None, url
    return place.port


class ForwardedPort:
    """A port of an address in a namespace that leads to the same port of the tests' loopback.

    The address is that of the loopback by default.
    """

    def __init__(self, namespace: Path, port: int, address: str = HOST) -> None:
        self._port = port
        self._address = address
        self._listener: socket.socket | None = None
        opener = threading.Thread(target=self._listen, args=(namespace,))
        opener.start()
        opener.join()
        assert self._listener is not None, f"{namespace} could not be entered"
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Stop listening; open connections end with their processes."""
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self, namespace: Path) -> None:
        """Listen within the namespace; this thread alone enters the namespace and never returns."""
        with namespace.open() as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _CLONE_NEWNET) == 0:
                self._listener = socket.create_server((self._address, self._port))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                inner, _ = listener.accept()
                threading.Thread(target=self._pass_on, args=(inner,), daemon=True).start()

    def _pass_on(self, inner: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            inner,
            socket.create_connection((HOST, self._port)) as outer,
        ):
            ends = {inner: outer, outer: inner}
            while True:
                for source in select.select(list(ends), [], [])[0]:
                    content = source.recv(PIPE_BYTES)
                    if not content:
                        return
                    ends[source].sendall(content)
