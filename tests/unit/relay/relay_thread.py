"""A relay in a thread of the test process."""

import asyncio
import ssl
import threading
import time

from relay.bounds import DEFAULT_BOUNDS, RelayBounds
from relay.server import Relay

_START_SECONDS_MAX = 10.0
_STOP_SECONDS_MAX = 5.0


class RelayThread:
    """A relay in a thread, which listens on an address of this machine."""

    def __init__(
        self,
        secret: bytes,
        host: str,
        port: int = 0,
        bounds: RelayBounds = DEFAULT_BOUNDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create a relay. `start` begins to listen.

        Args:
            secret: the secret by which the API signs tickets.
            host: the address to listen on.
            port: the port to listen on, or 0 for a free port.
            bounds: the limits.
            tls: the relay's certificate. None to serve without TLS.
        """
        self._secret, self._host, self._bounds, self._tls = secret, host, bounds, tls
        self.port = port
        """The port, which is known after `start`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until the relay listens. Raise OSError if it cannot."""
        self._thread.start()
        if not self._ready.wait(_START_SECONDS_MAX):
            raise OSError(f"the relay did not start within {_START_SECONDS_MAX:g} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Close all connections and end the thread. Do nothing before `start`."""
        if self._loop is not None and self._stopped is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(_STOP_SECONDS_MAX)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        relay = Relay(self._secret, lambda: time.time_ns() // 1_000_000, self._bounds)
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self.port = await relay.start(self._host, self.port, self._tls)
        self._ready.set()
        await self._stopped.wait()
        await relay.stop()
