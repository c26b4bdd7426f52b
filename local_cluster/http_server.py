"""The HTTP server of an embedded cluster: address, logs and shutdown."""

import asyncio
import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from anyio import to_thread
from starlette.types import ASGIApp

from control_plane.api.access_log import JsonLines
from lambdas.clock import now_ms
from lambdas.uvicorn_config import build_uvicorn_config
from local_cluster.connections import DEFAULT_BOUNDS, ConnectionBounds, ConnectionLimits
from relay.server import Relay

HOST = "127.0.0.1"
DEFAULT_PORT = 8470
"""The port of a data folder's first server."""
PORTS_TRIED_MAX = 100
# Longer than an agent's long poll, so that the connection of the agent is kept.
KEEP_ALIVE_SECONDS = 75
CLOSE_SECONDS_MAX = 1
BACKLOG = 256
HANDSHAKE_SECONDS_MAX = 10.0
THREADS_BY_FILE = 4
"""The number of concurrent handlers with the state in a file.

A handler waits for the disk at each commit. The interpreter runs only a single thread at a time, so
that more threads would delay long requests: a handler waits for the interpreter after each row.
"""
THREADS_BY_DATABASE = 8
"""The number of concurrent handlers with the state in a database, whose answers handlers await."""


@dataclass(frozen=True)
class PublicListener:
    """A listening socket for other machines, in addition to the socket for this machine."""

    socket: socket.socket
    """The listening socket."""
    context: ssl.SSLContext | None
    """The context with the server's certificate, or None for HTTP without TLS."""


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server with limits on idle and slow connections, which runs `on_stop` before the
    close.

    Args:
        app: the application to serve.
        on_start: called in the server's event loop after the server has started to listen.
        on_stop: called in a thread at the first SIGTERM or SIGINT, while requests are still served.
            The server closes after the call, also after an error. A second signal closes the server
            at once.
        relay_secret: the secret of tickets for the relay of tunnels, which the server serves at
            the same port. None for a server without a relay.
        bounds: the numbers and times that limit the connections.
        public: a further listening socket, for other machines. None for none.
        close_seconds_max: how long unfinished responses may take after `on_stop`.
        threads: the number of concurrent handlers.

    Attributes:
        limits: the open connections, and the limits on idle and slow connections.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_start: Callable[[], None],
        on_stop: Callable[[], None],
        relay_secret: bytes | None = None,
        bounds: ConnectionBounds = DEFAULT_BOUNDS,
        public: PublicListener | None = None,
        close_seconds_max: int = CLOSE_SECONDS_MAX,
        threads: int = THREADS_BY_FILE,
    ) -> None:
        self._public = public
        self._threads = threads
        self.limits = ConnectionLimits(app, bounds)
        config = build_uvicorn_config(
            self.limits,
            http=self.limits.connection_class(),
            keep_alive_seconds=KEEP_ALIVE_SECONDS,
            close_seconds_max=close_seconds_max,
        )
        super().__init__(config)
        self._on_start = on_start
        self._on_stop = on_stop
        self._relay_secret = relay_secret
        self._stop_thread: threading.Thread | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Limit the handlers, create the relay, start to listen, and call `on_start`.

        The server listens at all sockets, `public` included.

        Called by uvicorn. An error of `on_start` ends the server.
        """
        to_thread.current_default_thread_limiter().total_tokens = self._threads
        if self._relay_secret is not None:
            self.limits.relay = Relay(self._relay_secret, now_ms)
        await super().startup(sockets)
        if self._public is not None:
            self.servers.append(await self._listen(self._public))
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections of the relay, then all remaining connections. Called by uvicorn."""
        if self.limits.relay is not None:
            await self.limits.relay.stop()
        await super().shutdown(sockets)

    async def _listen(self, public: PublicListener) -> asyncio.Server:
        """Accept connections at the socket for other machines.

        A client must complete the TLS handshake within HANDSHAKE_SECONDS_MAX.
        """
        config = self.config
        return await asyncio.get_running_loop().create_server(
            # The same arguments as in uvicorn's own `startup`.
            lambda: config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            ),
            sock=public.socket,
            ssl=public.context,
            ssl_handshake_timeout=None if public.context is None else HANDSHAKE_SECONDS_MAX,
            backlog=BACKLOG,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the thread that calls `on_stop`; at a second signal, close the server at once.

        Called by uvicorn at SIGTERM and SIGINT.
        """
        if self._stop_thread is not None:
            self.should_exit = self.force_exit = True
            return
        self._stop_thread = threading.Thread(target=self._run_on_stop, name="leaving", daemon=True)
        self._stop_thread.start()

    def _run_on_stop(self) -> None:
        """Call `on_stop`, then let the server close, even after an error.

        The error ends the thread, which prints the traceback.
        """
        try:
            self._on_stop()
        finally:
            self.should_exit = True


def open_listener(port: int | None, former_port: int | None = None) -> socket.socket:
    """Open a listening socket on 127.0.0.1.

    Args:
        port: the port to use. None for `former_port`, or for the next free port if that port is in
            use.
        former_port: the port of the former server. None for DEFAULT_PORT.

    Raises:
        OSError: `port` is not available; the message names the port. Without `port`, no port is
            free.
    """
    if port is None:
        return _bind_next_free(former_port or DEFAULT_PORT)
    try:
        return _bind_listener(port)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a port number"
        raise OSError(
            f"port {port} is not available: {why}; choose another port, or leave out --port to "
            "use a free one"
        ) from None


def open_public_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket for other machines.

    Args:
        host: an IP address of this machine, or 0.0.0.0 or :: for all addresses.
        port: the port; 0 for any free port.

    Raises:
        OSError: the address is not available; the message names it.
    """
    try:
        return _bind_listener(port, host)
    except (OSError, OverflowError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OSError(f"--listen {host}:{port} is not possible: {why}") from None


def configure_logging(path: Path) -> None:
    """Configure the process to write logs as JSON lines to stderr, and to append to file `path`.

    Do not open `path` if stderr already writes to this file. Lines below level INFO, lines of
    uvicorn below WARNING, and lines about successful GET requests and agents' syncs are omitted. A
    root logger that has handlers already keeps its handlers and level and gets no others. Raises
    OSError if the file cannot be opened.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, handlers=_log_handlers(path))
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _log_handlers(path: Path) -> list[logging.Handler]:
    """Return handlers for stderr and the file `path`, or only for stderr if stderr is the file.

    Raises OSError if the file cannot be opened.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if not _is_standard_error(path):
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(JsonLines())
        handler.addFilter(_is_worth_a_line)
    return handlers


def _bind_next_free(first: int) -> socket.socket:
    """Return a socket that listens on the first free port of PORTS_TRIED_MAX ports from `first`.

    The address is HOST. A port that cannot be used for any reason is skipped. After the last port,
    the operating system chooses a port. Raises OSError if no port is free.
    """
    for candidate in range(first, first + PORTS_TRIED_MAX):
        try:
            return _bind_listener(candidate)
        except (OSError, OverflowError):
            continue
    return _bind_listener(0)


def _bind_listener(port: int, host: str = HOST) -> socket.socket:
    """Return a socket that listens on the address `host` at `port`; 0 for any free port.

    Raises OSError if the port is not available, and OverflowError for an invalid port number.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, the event loop disables Nagle's algorithm. Otherwise each short
    # response would take 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


def _is_standard_error(path: Path) -> bool:
    """Return whether stderr writes to the file `path`. Return False for a missing file."""
    try:
        return os.path.samestat(os.fstat(2), path.stat())
    except OSError:
        return False


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return whether to log a record. False for a successful GET request or sync below WARNING.

    Agents and browsers send these requests continuously.
    """
    fields = getattr(record, "fields", {})
    # A request that failed with an exception has no status when it is logged.
    if record.levelno >= logging.WARNING or (fields.get("status") or 500) >= 400:
        return True
    return fields.get("method") != "GET" and not str(fields.get("path")).endswith("/sync")
