"""The step of a self-test that opens a tunnel to a running trial."""

from __future__ import annotations

import secrets
import socket
import time
from typing import Final

from detcloud.cli.rendering.progress import Progress
from detcloud.cli.verification.cloud_calls import wait_with_progress
from detcloud.cli.verification.report import StepFailed, StepReport, StepSkipped
from detcloud.client import Client
from detcloud.client.tunnel import PortPair, UserTunnel, close_listeners, open_listeners
from detcloud.client.tunnel_thread import TunnelThread
from detcloud.shared.http import ApiError

# The relay may have to start, which takes less than two minutes.
ANSWER_SECONDS_MAX: Final = 180.0
# Ports of programs, below the ports that systems choose for connections.
_PORTS: Final = range(20_000, 30_000)


def choose_port() -> int:
    """Return a port for the program of the notice's trial, which is alone on a new machine."""
    return secrets.choice(_PORTS)


def check_tunnel(
    client: Client, trial_id: int, port: int, step: StepReport, progress: Progress
) -> None:
    """Open a tunnel to a program of a trial that echoes bytes, and record the seconds to the echo.

    Raises:
        StepSkipped: the cluster has no relay.
        StepFailed: the tunnel ended, or no echo arrived in ANSWER_SECONDS_MAX.
        ApiError: the cluster refused the tunnel for another reason.
    """
    listeners = open_listeners([PortPair(0, port)])
    reports: list[str] = []
    try:
        began = time.monotonic()
        try:
            tunnel = UserTunnel(client, trial_id, listeners, reports.append)
        except ApiError as error:
            # The trial exists, so nothing else is missing.
            if error.status == 404:
                raise StepSkipped(error.message) from None
            raise
        thread = TunnelThread(tunnel)
        try:
            local = listeners[0][0].getsockname()[1]
            text = secrets.token_hex(16).encode()
            echo = wait_with_progress(lambda: _exchange(local, text), progress, "opening a tunnel")
        finally:
            thread.close()
    finally:
        close_listeners(listeners)
    if echo != text:
        said = (
            "; ".join(filter(None, (*reports, thread.end_reason)))
            or f"no answer in {ANSWER_SECONDS_MAX:g} s"
        )
        raise StepFailed(f"the program behind the tunnel did not answer: {said}")
    step.details["seconds to the first byte"] = round(time.monotonic() - began, 1)


def _exchange(port: int, text: bytes) -> bytes:
    """Send a text to a local port, and return at most as many bytes of the answer.

    Return what has arrived if the connection ends, or after ANSWER_SECONDS_MAX.
    """
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as connection:
            connection.sendall(text)
            while len(received) < len(text):
                part = connection.recv(len(text) - len(received))
                if not part:
                    break
                received += part
    except OSError:
        pass
    return received
