"""The tunnel to the debugger of a trial, carried by threads of this command."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from detcloud.cli.rendering.terminal import print_remark
from detcloud.client import Client
from detcloud.client.tunnel import PortPair, UserTunnel, open_listeners
from detcloud.client.tunnel_thread import TunnelThread
from detcloud.shared.tunnel.services import DEBUGGER

PORT = 5_678
"""The port of this machine at which the debugger is reached. debugpy's documentation uses it."""


class DebuggerTunnel:
    """A port of this machine that leads to the debugger of a trial, until the `with` block ends."""

    def __init__(self, client: Client, trial_id: int) -> None:
        """Open the tunnel and the port: PORT, or a free port if PORT is not available.

        Raises:
            DetcloudError: the cluster refuses the tunnel or does not answer.
        """
        ((self._listener, _),) = open_listeners([PortPair(PORT, PORT, can_move=True)])
        try:
            self._tunnel = UserTunnel(client, trial_id, report=report, services=(DEBUGGER,))
        except BaseException:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]
        self._thread: TunnelThread

    def __enter__(self) -> DebuggerTunnel:
        self._thread = TunnelThread(self._tunnel)
        threading.Thread(target=self._accept, name="debuggers", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            # Closing the socket alone would not end the thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.close()

    def wait(self) -> str:
        """Wait for the end of the tunnel, and return the reason as a sentence."""
        return self._thread.wait()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._tunnel.carry_service(DEBUGGER, connection)


def report(text: str) -> None:
    """Print a sentence about the tunnel to stderr."""
    print_remark("tunnel", text)
