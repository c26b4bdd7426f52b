"""The user's end of a tunnel to ports of a running trial."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from detcloud.client.connection import Connection
from detcloud.client.resource import path_segment
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Unreachable
from detcloud.shared.tunnel.frames import SESSION_BYTES
from detcloud.shared.tunnel.keys import SecureChannel, make_key
from detcloud.shared.tunnel.relay_link import RelayLink, RelayUnavailable, dial_with_ticket
from detcloud.shared.tunnel.session import FORGOTTEN_SESSION, TunnelSession
from detcloud.shared.tunnel.tunnel_end import TunnelEnd, TunnelOver

ADDRESS = "127.0.0.1"
BACKLOG = 128
STOPPED = "the user's end has closed the tunnel"
"""The result of `UserTunnel.run` after `stop`."""
ANSWER_SECONDS_MAX = 120.0
"""The time in which the agent must answer. Agents in clouds ask the cluster twice a minute."""
# The first ticket is used only while it is certainly valid.
_TICKET_SECONDS = 40.0
# The cluster has closed the tunnel, or the token has ended. Other errors of the cluster may pass.
_FINAL_STATUSES = frozenset((401, 403, 404, 409, 422))
_POLL_SECONDS_MIN, _POLL_SECONDS_MAX = 0.02, 1.0


@dataclass(frozen=True)
class PortPair:
    """A port of this machine that leads to a port of the trial."""

    local: int
    """The port of this machine. 0 for a free port."""
    remote: int
    can_move: bool = False
    """Whether a free port replaces a local port that is not available."""


def open_listeners(pairs: Sequence[PortPair]) -> list[tuple[socket.socket, int]]:
    """Listen on the local ports of `pairs`, at 127.0.0.1 only.

    Return the sockets, each with the port of the trial. Raise DetcloudError, with no socket left
    open, if a port is not available.
    """
    listeners: list[tuple[socket.socket, int]] = []
    for pair in pairs:
        try:
            listener = _listen(pair)
        except (OSError, OverflowError) as error:
            close_listeners(listeners)
            reason = getattr(error, "strerror", None) or str(error)
            raise DetcloudError(
                f"port {pair.local} of this machine is not available: {reason}; choose another "
                f"with LOCAL:{pair.remote}, or a free one with 0:{pair.remote}"
            ) from None
        listeners.append((listener, pair.remote))
    return listeners


def _listen(pair: PortPair) -> socket.socket:
    """Listen on the local port of a pair, or on a free port if the pair may move.

    Raise OSError or OverflowError if the port is not available.
    """
    try:
        return socket.create_server((ADDRESS, pair.local), backlog=BACKLOG)
    except OSError:
        if not pair.can_move:
            raise
    return socket.create_server((ADDRESS, 0), backlog=BACKLOG)


def close_listeners(listeners: Sequence[tuple[socket.socket, int]]) -> None:
    """Close the sockets of `open_listeners`."""
    for listener, _ in listeners:
        listener.close()


class UserTunnel:
    """A tunnel that this process has opened. `run` carries its connections."""

    def __init__(
        self,
        client: Connection,
        trial_id: int,
        listeners: Sequence[tuple[socket.socket, int]] = (),
        report: Callable[[str], None] = lambda text: None,
        idle_seconds: float = 0.0,
        *,
        services: Sequence[str] = (),
        report_notice: Callable[[str], None] | None = None,
    ) -> None:
        """Open a tunnel to a trial's present allocation. No connection is carried yet.

        Args:
            client: the connection to the cluster.
            trial_id: the trial.
            listeners: sockets that listen, each with a port of the trial.
            report: called in the thread of `run` with sentences about the tunnel.
            idle_seconds: the time without bytes after which the tunnel closes. 0 for never.
            services: the services of the allocation that `open_service` may open.
            report_notice: called in the same thread with sentences of the machine, by default
                `report`.

        Raises:
            ApiError: the cluster refuses the tunnel.
            DetcloudError: the cluster does not answer.
        """
        self._client = client
        self._key = make_key()
        ports = sorted({port for _, port in listeners})
        body: dict[str, Any] = {
            "trial_id": trial_id,
            "ports": ports,
            "certificate": self._key.certificate,
        }
        if services:
            body["services"] = list(services)
        self._opened: dict[str, Any] | None = client.post("/tunnels", body)
        self._opened_at = time.monotonic()
        self.id = str(self._opened["tunnel"]["id"])
        self._listeners = listeners
        self._report, self._report_notice = report, report_notice
        self._idle_seconds = idle_seconds
        self._end = self._make_end()

    def open_service(self, service: str) -> socket.socket:
        """Open a stream to a service of the allocation, and return this process's end.

        May be called from any thread, before or during `run`, which carries the bytes. The socket
        ends if the service refuses, which is also reported, and with the tunnel.
        """
        connection, carried = socket.socketpair()
        self._end.open_service(service, carried)
        return connection

    def carry_service(self, service: str, connection: socket.socket) -> None:
        """Carry a connection of a program on this machine to a service of the allocation.

        May be called from any thread. The tunnel closes the socket with the stream, and at once if
        the service refuses, which is also reported.
        """
        self._end.open_service(service, connection)

    def run(self) -> str:
        """Carry connections until the tunnel ends, and return the reason as a sentence.

        After a restart of the agent, the present connections end, and new ones are carried.
        """
        while True:
            reason = self._end.run()
            if reason != FORGOTTEN_SESSION:
                return reason
            self._end = self._make_end()
            self._report(f"{reason}; new connections are possible")

    def stop(self) -> None:
        """End `run` in another thread. Return at once."""
        self._end.stop(STOPPED)

    def close(self) -> None:
        """Close the tunnel on the cluster. Ignore a cluster that does not answer."""
        with contextlib.suppress(DetcloudError):
            self._client.delete(f"/tunnels/{path_segment(self.id)}")

    def _make_end(self) -> TunnelEnd:
        return TunnelEnd(
            TunnelSession(os.urandom(SESSION_BYTES)),
            self._dial,
            listeners=self._listeners,
            report=self._report,
            report_notice=self._report_notice,
            idle_seconds=self._idle_seconds,
        )

    def _dial(self) -> RelayLink:
        """Wait for the agent's certificate, and dial the relay with a ticket.

        Raise TunnelOver if the cluster has closed the tunnel or the agent does not answer in time.
        Raise RelayUnavailable if another attempt may succeed.
        """
        try:
            answer = self._wait_for_answer()
            peer = str(answer["peer_certificate"])
            channel = SecureChannel(self._key, peer, is_agent=False)
            return dial_with_ticket(answer, channel)
        except Unreachable as error:
            raise RelayUnavailable(f"the cluster does not answer: {error}") from None
        except ApiError as error:
            if error.status not in _FINAL_STATUSES:
                raise RelayUnavailable(error.message) from None
            raise TunnelOver(error.message) from None
        except (KeyError, TypeError, ValueError) as error:
            raise TunnelOver(f"the cluster's answer is invalid: {error}") from None

    def _wait_for_answer(self) -> dict[str, Any]:
        """Return a ticket with the agent's certificate, once the agent has answered."""
        path = f"/tunnels/{path_segment(self.id)}"
        opened, self._opened = self._opened, None
        pause, deadline = _POLL_SECONDS_MIN, time.monotonic() + ANSWER_SECONDS_MAX
        while not (certificate := str(self._client.get(path)["agent_certificate"])):
            if time.monotonic() > deadline:
                raise TunnelOver(
                    f"the trial's machine did not answer within {ANSWER_SECONDS_MAX:g} s; see "
                    "`detcloud agent list`"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_SECONDS_MAX)
        if (
            opened is not None
            and opened["ticket"]
            and time.monotonic() - self._opened_at < _TICKET_SECONDS
        ):
            return {**opened, "peer_certificate": certificate}
        answer: dict[str, Any] = self._client.post(f"{path}/tickets")
        return answer
