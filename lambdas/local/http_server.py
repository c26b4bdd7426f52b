"""The HTTP server of an embedded cluster: its address, its logs, its end."""

import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from anyio import to_thread
from starlette.types import ASGIApp

from control_plane.api.access_log import JsonLines
from lambdas.local.connections import Connection

HOST = "127.0.0.1"
# Longer than an agent's call is held, so that its connection is kept.
KEEP_ALIVE_SECONDS = 75
CLOSE_SECONDS_MAX = 1
BACKLOG = 256
# Handlers at once. The interpreter runs one of them at a time: more would not be answered sooner,
# but the longer ones later, as each waits for its turn after each row that it reads.
THREADS = 2


class EmbeddedServer(uvicorn.Server):
    """Serves `app` on a socket. The first SIGTERM or SIGINT calls `on_stop` in a thread while
    requests are still served; the second ends at once.
    """

    def __init__(
        self, app: ASGIApp, on_start: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS_MAX,
        )
        super().__init__(config)
        self._on_start = on_start
        self._on_stop = on_stop
        self._stop_thread: threading.Thread | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        await super().startup(sockets)
        self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop_thread is not None:
            self.should_exit = self.force_exit = True
            return
        self._stop_thread = threading.Thread(target=self._run_on_stop, name="leaving", daemon=True)
        self._stop_thread.start()

    def _run_on_stop(self) -> None:
        try:
            self._on_stop()
        finally:
            self.should_exit = True


def open_listener(port: int | None, former_url: str) -> socket.socket:
    """Open a listening socket on `port`, or where we listened before, or on any free port.

    Raises:
        OSError: `port` cannot be had; the message names it.
    """
    former = re.fullmatch(r".*:([0-9]{1,5})", former_url)
    candidates = [port] if port is not None else [int(former[1]) if former else 0, 0]
    for candidate in candidates[:-1]:
        try:
            return _bind_listener(candidate)
        except (OSError, OverflowError):
            continue
    try:
        return _bind_listener(candidates[-1])
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a port number"
        text = (
            f"port {port} is not available: {why}; choose another port, or leave out --port to "
            "use a free one"
        )
        raise OSError(text) if port is not None else error from None


def configure_logging(path: Path) -> None:
    """Write structured logs to standard error, and to `path` unless that is the same file."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if not _is_standard_error(path):
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(JsonLines())
        handler.addFilter(_is_worth_a_line)
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _bind_listener(port: int) -> socket.socket:
    # Named as TCP, for the loop to send short answers at once: held back, each takes 40 ms more.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


def _is_standard_error(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), path.stat())
    except OSError:
        return False


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a record is about more than a read or sync, which agents and watchers do all day."""
    fields = getattr(record, "fields", {})
    # What failed has no status yet when it is logged.
    if record.levelno >= logging.WARNING or (fields.get("status") or 500) >= 400:
        return True
    return fields.get("method") != "GET" and not str(fields.get("path")).endswith("/sync")
