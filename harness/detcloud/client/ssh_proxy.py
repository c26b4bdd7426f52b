"""The connection of an SSH client on this machine with the SSH server of a trial, over a tunnel."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

from detcloud.client.connection import Connection
from detcloud.client.tunnel import UserTunnel
from detcloud.shared.ssh_greeting import GreetingFailed, encode_request, read_answer
from detcloud.shared.tunnel.services import SSH

END_SECONDS = 3.0
"""The time for which the reason of an unexpected end is awaited."""
_READ_BYTES = 65_536


class SshProxy:
    """A tunnel to the SSH server of a trial's present allocation. A context manager."""

    def __init__(self, client: Connection, trial_id: int, report: Callable[[str], None]) -> None:
        """Open the tunnel. No byte of SSH is carried yet.

        Args:
            client: the connection to the cluster.
            trial_id: the trial.
            report: called from a thread with sentences for the user.

        Raises:
            DetcloudError: the cluster refuses the tunnel or does not answer.
        """
        self._report = report
        self._tunnel = UserTunnel(client, trial_id, report=report, services=(SSH,))
        self._stream = self._tunnel.open_service(SSH)
        self._over = threading.Event()
        self._reason = ""
        self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)

    def __enter__(self) -> SshProxy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Close the tunnel on the cluster, so that the server in the allocation ends at once."""
        self._stream.close()
        self._tunnel.stop()
        self._thread.join(END_SECONDS)
        self._tunnel.close()

    def exchange_keys(self, public_key: str) -> str:
        """Send the user's public key, and return the public key of the server.

        Raises:
            GreetingFailed: the tunnel ended, or the server cannot be started.
        """
        try:
            self._stream.sendall(encode_request(public_key))
            return read_answer(self._stream.recv, self._report)
        except OSError as error:
            raise GreetingFailed(f"the connection broke: {error}") from None
        except GreetingFailed:
            if self._has_ended():
                raise GreetingFailed(self._reason) from None
            raise

    def carry(self, source: int, sink: int) -> bool:
        """Copy bytes between two descriptors and the server, until either side ends.

        Return False, after reporting the reason, if the tunnel has ended, and True otherwise.
        """
        sender = threading.Thread(target=self._send, args=(source,), daemon=True)
        sender.start()
        with contextlib.suppress(OSError):
            while data := self._stream.recv(_READ_BYTES):
                _write_all(sink, data)
        if sender.is_alive() and self._has_ended():
            self._report(self._reason)
            return False
        return True

    def _send(self, source: int) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(source, _READ_BYTES):
                self._stream.sendall(data)
            self._stream.shutdown(socket.SHUT_WR)

    def _run(self) -> None:
        try:
            self._reason = self._tunnel.run()
        finally:
            self._over.set()

    def _has_ended(self) -> bool:
        """Return whether the tunnel ends within END_SECONDS, after the end of the stream."""
        return self._over.wait(END_SECONDS)


def _write_all(sink: int, data: bytes) -> None:
    """Write all bytes to a descriptor. Raise OSError if the reader has left."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sink, rest) :]
