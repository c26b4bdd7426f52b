"""The tunnel to a notebook or shell on another machine, carried by a thread of this command."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from detcloud.cli.rendering.terminal import print_remark
from detcloud.client import Client
from detcloud.client.tunnel import PortPair, UserTunnel, close_listeners, open_listeners
from detcloud.client.tunnel_thread import TunnelThread
from detcloud.shared.errors import DetcloudError
from detcloud.shared.tunnel.services import LOCATION, LOCATION_BYTES_MAX

_READ_BYTES = 1024
_END_SECONDS = 2.0


class PlaceTunnel:
    """A tunnel to the port of a notebook or shell, and to the file with address and secret.

    The file passes only through the encrypted session. The tunnel ends with the `with` block.
    """

    def __init__(
        self,
        client: Client,
        trial_id: int,
        place: dict[str, Any],
        idle_seconds: float,
        *,
        services: Sequence[str] = (),
        on_notice: Callable[[], None] | None = None,
    ) -> None:
        """Open the tunnel and a port of this machine. Sentences about the tunnel go to stderr.

        Args:
            client: the connection to the cluster.
            trial_id: the trial of the notebook or shell.
            place: the place that the trial has reported, as `wait_for_place` returns.
            idle_seconds: the time without bytes after which the tunnel closes. 0 for never.
            services: further services of the allocation that `open_service` may open.
            on_notice: called in a thread after a sentence of the machine, for example before the
                machine's end.

        Raises:
            ApiError: the cluster refuses the tunnel, for example because it has no relay.
            DetcloudError: the place has no port, or the cluster does not answer.
        """
        remote = parse_port(place.get("port"))
        if remote is None:
            raise DetcloudError(f"the report of trial {trial_id} has no port: {place!r:.200}")
        # The same number keeps the address of a notebook when the tunnel is opened again.
        self._listeners = open_listeners([PortPair(remote, remote, can_move=True)])
        try:
            self._tunnel = UserTunnel(
                client,
                trial_id,
                self._listeners,
                _report,
                idle_seconds,
                services=(LOCATION, *services),
                report_notice=None if on_notice is None else partial(_pass_notice, on_notice),
            )
        except BaseException:
            close_listeners(self._listeners)
            raise
        self.local_port: int = self._listeners[0][0].getsockname()[1]
        """The port of 127.0.0.1 that leads to the notebook or shell."""
        self._thread = TunnelThread(self._tunnel)

    def __enter__(self) -> PlaceTunnel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.close()
        close_listeners(self._listeners)

    @property
    def end_reason(self) -> str:
        """The reason of the tunnel's end, as a sentence. "" while the tunnel is open."""
        return self._thread.end_reason

    def open_service(self, service: str) -> socket.socket:
        """Open a stream to a service, and return this end. The stream ends at once if the machine
        refuses, after a sentence on stderr.
        """
        return self._tunnel.open_service(service)

    def read_location(self) -> dict[str, Any]:
        """Return the fields of the file with address and secret.

        Wait until the machine has answered, at most for the time that the tunnel permits.

        Raises:
            DetcloudError: the machine does not answer or offers no such file, the tunnel has ended,
                or the file has no JSON object.
        """
        received = b""
        with self._tunnel.open_service(LOCATION) as connection:
            while len(received) <= LOCATION_BYTES_MAX:
                try:
                    part = connection.recv(_READ_BYTES)
                except ConnectionError:
                    part = b""
                if not part:
                    break
                received += part
        try:
            fields = json.loads(received)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            # The stream ends shortly before the tunnel.
            end_reason = self._thread.wait(0 if received else _END_SECONDS)
            reason = f": {end_reason}" if end_reason else ""
            raise DetcloudError(f"the machine did not send the address{reason}")
        return fields

    def wait(self, seconds: float | None = None) -> str:
        """Wait for the end of the tunnel, and return the reason as a sentence.

        Return "" if the tunnel is still open after a time. None waits without a limit.
        """
        return self._thread.wait(seconds)


@contextlib.contextmanager
def print_notices(client: Client, trial_id: int) -> Iterator[None]:
    """Print the notices of a trial's machine to stderr during the block.

    A notice is for example the warning before the end of the run. For a terminal that needs no
    tunnel to the shell: this tunnel carries no connection. If the cluster refuses the tunnel, or
    the tunnel is interrupted, the notices are not printed.
    """
    try:
        tunnel = UserTunnel(client, trial_id, services=(LOCATION,), report_notice=_report)
    except DetcloudError:
        yield
        return

    thread = TunnelThread(tunnel)
    try:
        yield
    finally:
        thread.close()


def parse_port(value: object) -> int | None:
    """Return a port from a report or file, or None if the value is no port."""
    return value if type(value) is int and 0 < value < 65_536 else None


def _pass_notice(on_notice: Callable[[], None], text: str) -> None:
    """Print a sentence of the machine, and call `on_notice`."""
    _report(text)
    on_notice()


def _report(text: str) -> None:
    print_remark("tunnel", text)
