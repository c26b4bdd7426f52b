"""A thread that carries a tunnel while another thread uses the tunnel's ports or services."""

from __future__ import annotations

import threading

from detcloud.client.tunnel import UserTunnel

_END_SECONDS = 2.0


class TunnelThread:
    """A thread that carries a tunnel until `close`, the tunnel's end, or the process's end.

    Attributes:
        end_reason: the reason of the tunnel's end, as a sentence. "" while the tunnel is open.
    """

    def __init__(self, tunnel: UserTunnel) -> None:
        """Start the thread."""
        self._tunnel = tunnel
        self.end_reason = ""
        self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> str:
        """Wait for the end of the tunnel, and return the reason as a sentence.

        Return "" if the tunnel is still open after a time. None waits without a limit.
        """
        self._thread.join(seconds)
        return self.end_reason

    def close(self) -> None:
        """End the thread, and close the tunnel on the cluster.

        A thread that waits for the machine's answer ends with the process.
        """
        self._tunnel.stop()
        self._thread.join(_END_SECONDS)
        self._tunnel.close()

    def _run(self) -> None:
        try:
            self.end_reason = self._tunnel.run()
        except Exception as error:
            # The thread's traceback would appear in the middle of a terminal session.
            self.end_reason = f"an error of this command: {error!r}"
