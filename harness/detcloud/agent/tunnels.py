"""The agent's ends of tunnels: a thread for each tunnel in the cluster's answers.

The module is imported with the first tunnel, so that an idle agent stays small.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from detcloud.agent.port_owners import are_owned, find_listeners
from detcloud.agent.tunnel_services import TunnelServices
from detcloud.shared.http import ApiError, Transport, Unreachable
from detcloud.shared.tunnel.keys import SecureChannel, make_key
from detcloud.shared.tunnel.multiplexer import ResetReason
from detcloud.shared.tunnel.relay_link import RelayUnavailable, dial_with_ticket
from detcloud.shared.tunnel.session import TunnelSession
from detcloud.shared.tunnel.tunnel_end import TunnelEnd, TunnelOver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from detcloud.agent.node import Node
    from detcloud.shared.notices import Notice
    from detcloud.shared.tunnel.keys import TunnelKey
    from detcloud.shared.tunnel.relay_link import RelayLink

REQUEST_SECONDS = 10.0
CLOSED_BY_CLUSTER = (
    "the tunnel was closed: the allocation ended, the token was revoked, or a user closed it"
)
RESERVED_DESCRIPTORS = 256
"""The descriptors that streams leave to the agent's other work."""
AGENT_STOPS = "the agent is stopping, so its connections end"


@dataclass(frozen=True, slots=True)
class Targets:
    """The parts of an allocation to which a tunnel leads."""

    ports: frozenset[int]
    services: frozenset[str] = frozenset()
    """The names of services. An unknown name belongs to a newer cluster."""


class AllocationPorts:
    """The ports and services of an allocation that a tunnel may reach."""

    def __init__(
        self,
        node: Node,
        services: TunnelServices,
        allocation: str,
        targets: Targets,
        has_room: Callable[[], bool],
    ) -> None:
        self._node = node
        self._services = services
        self._allocation = allocation
        self._targets = targets
        self._has_room = has_room

    def connect(self, port: int) -> socket.socket | ResetReason:
        """Return a socket that connects to a port of the allocation without blocking.

        Return the reason of a refusal if the tunnel is not for the port, if the agent has too many
        streams, if no program listens, or if a program outside the allocation listens.
        """
        if port not in self._targets.ports:
            return ResetReason.NOT_ALLOWED
        if not self._has_room():
            return ResetReason.NO_ROOM
        listeners = find_listeners(port)
        if not listeners:
            return ResetReason.REFUSED
        if not are_owned(listeners, self._node.allocation_processes(self._allocation)):
            return ResetReason.FOREIGN
        address = listeners[0].address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.connect_ex((address, port))
        return connection

    def check(self, port: int) -> ResetReason | None:
        """Return a reason to refuse a port on which other programs than the allocation's listen.

        Return None if only programs of the allocation listen. Called after the connection, because
        another program may have taken the port meanwhile.
        """
        is_own = are_owned(find_listeners(port), self._node.allocation_processes(self._allocation))
        return None if is_own else ResetReason.FOREIGN

    def serve(self, service: str) -> socket.socket | ResetReason:
        """Return a connected socket of a service of the allocation.

        Return the reason of a refusal if the tunnel is not for the service, if the agent has too
        many streams or does not know the service, or if the service is not available now.
        """
        if service not in self._targets.services:
            return ResetReason.NOT_ALLOWED
        if not self._has_room():
            return ResetReason.NO_ROOM
        return self._services.open(self._allocation, service)


class AgentTunnels:
    """The open tunnels of an agent. `apply` and `notify` may be called from different threads."""

    def __init__(
        self,
        url: str,
        agent: str,
        session_token: Callable[[], str | None],
        node: Node,
        log_line: Callable[[str], None],
    ) -> None:
        """Create a keeper without tunnels.

        Args:
            url: the address of the cluster.
            agent: the agent's id.
            session_token: returns the agent's current token, or None without a session.
            node: the node's allocations.
            log_line: writes to the agent's log.
        """
        self._url, self._agent, self._session_token = url, agent, session_token
        self._node, self._log_line = node, log_line
        self._services = TunnelServices(node)
        self._lock = threading.Lock()
        self._ends: dict[str, TunnelEnd] = {}
        # The allocations of the tunnels in `_ends`.
        self._allocations: dict[str, str] = {}
        self._notice: Notice | None = None

    def __len__(self) -> int:
        """Return the number of open tunnels."""
        with self._lock:
            return len(self._ends)

    def apply(self, entries: Sequence[dict[str, Any]]) -> None:
        """Open the tunnels that the cluster lists, and close all others.

        Malformed entries are logged.
        """
        try:
            listed = {str(entry["tunnel"]): entry for entry in entries}
            new = {name: _parse_targets(entry) for name, entry in listed.items()}
        except (KeyError, TypeError, ValueError) as error:
            self._log_line(f"a tunnel of the cluster could not be opened: {error!r}")
            return
        with self._lock:
            for name, end in self._ends.items():
                if name not in listed:
                    end.stop(CLOSED_BY_CLUSTER)
            for name in listed.keys() - self._ends.keys():
                self._open(name, str(listed[name]["allocation"]), new[name])

    def notify(self, notice: Notice) -> None:
        """Show the users of all tunnels, once, that this machine will end."""
        with self._lock:
            if notice == self._notice:
                return
            self._notice = notice
            for end in self._ends.values():
                end.notify(_notice_text(notice))

    def warn(self, allocation: str, text: str) -> None:
        """Show a sentence to the users of all tunnels to an allocation."""
        with self._lock:
            for name, end in self._ends.items():
                if self._allocations[name] == allocation:
                    end.notify(text)

    def close(self) -> None:
        """Close all tunnels, because the agent stops."""
        with self._lock:
            for end in self._ends.values():
                end.stop(AGENT_STOPS)

    def _open(self, tunnel: str, allocation: str, targets: Targets) -> None:
        """Start the thread of a tunnel."""
        key = make_key()
        end = TunnelEnd(
            TunnelSession(None),
            partial(self._dial, tunnel, key.certificate, partial(_channel, key)),
            on_use=lambda: self._node.note_use(allocation),
            ports=AllocationPorts(self._node, self._services, allocation, targets, self._has_room),
        )
        if self._notice is not None:
            end.notify(_notice_text(self._notice))
        if warning := self._node.end_warning(allocation):
            end.notify(warning)
        self._ends[tunnel], self._allocations[tunnel] = end, allocation
        self._log_line(f"tunnel {tunnel} to {allocation} begins")
        threading.Thread(
            target=self._run, args=(tunnel, end), name=f"tunnel {tunnel}", daemon=True
        ).start()

    def _has_room(self) -> bool:
        """Return whether the process may open another connection for a stream.

        Users share the agent, so streams must not take the descriptors of its other work.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = sum(end.open_sockets for end in list(self._ends.values()))
        return limit == resource.RLIM_INFINITY or used < limit - RESERVED_DESCRIPTORS

    def _run(self, tunnel: str, end: TunnelEnd) -> None:
        reason = "an error of the agent"
        try:
            reason = end.run()
            if end.is_abandoned:
                self._abandon(tunnel)
        finally:
            with self._lock:
                del self._ends[tunnel], self._allocations[tunnel]
            self._log_line(f"tunnel {tunnel} ended: {reason}")

    def _abandon(self, tunnel: str) -> None:
        """Ask the cluster to close a tunnel whose user's end does not come back.

        After a failure, the next answer lists the tunnel again, and another attempt follows.
        """
        client = Transport(self._url, self._session_token())
        try:
            path = f"/api/v1/agents/{self._agent}/tunnels/{tunnel}"
            client.request("DELETE", path, retry=False, timeout_seconds=REQUEST_SECONDS)
        except (Unreachable, ApiError) as error:
            self._log_line(f"tunnel {tunnel} could not be closed on the cluster: {error}")
        finally:
            client.close()

    def _dial(
        self, tunnel: str, certificate: str, open_channel: Callable[[str], SecureChannel]
    ) -> RelayLink:
        """Fetch a ticket from the cluster, and dial the relay.

        Raise TunnelOver if the cluster has closed the tunnel, and RelayUnavailable if another
        attempt may succeed.
        """
        path = f"/api/v1/agents/{self._agent}/tunnels/{tunnel}/tickets"
        client = Transport(self._url, self._session_token())
        try:
            answer = client.request(
                "POST",
                path,
                {"certificate": certificate},
                retry=False,
                timeout_seconds=REQUEST_SECONDS,
            )
            channel = open_channel(str(answer["peer_certificate"]))
            return dial_with_ticket(answer, channel)
        except Unreachable as error:
            raise RelayUnavailable(f"the cluster does not answer: {error}") from None
        except ApiError as error:
            # Without a valid session, the session's thread enrols again.
            if error.status in (403, 404, 409, 422):
                raise TunnelOver(error.message) from None
            raise RelayUnavailable(error.message) from None
        except (KeyError, TypeError, ValueError) as error:
            raise TunnelOver(f"the cluster's answer is invalid: {error}") from None
        finally:
            client.close()


def _channel(key: TunnelKey, peer_certificate: str) -> SecureChannel:
    return SecureChannel(key, peer_certificate, is_agent=True)


def _parse_targets(entry: dict[str, Any]) -> Targets:
    """Return the ports and services of an entry. Raise ValueError for a number that is no port."""
    ports = frozenset(int(port) for port in entry["ports"])
    if not all(0 < port < 65_536 for port in ports):
        raise ValueError(f"ports {sorted(ports)}")
    return Targets(ports, frozenset(str(name) for name in entry.get("services", ())))


def _notice_text(notice: Notice) -> str:
    """Return the sentence for users about the end of this machine."""
    seconds = max(0, notice.deadline_ms - time.time_ns() // 1_000_000) // 1000
    return (
        f"this machine ends in {seconds} s: {notice.reason}; connections through the tunnel end "
        "with the machine, and a trial of an experiment continues on another machine from a "
        "checkpoint"
    )
