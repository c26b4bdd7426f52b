"""A server for an application of the API on a free port, for clients that speak HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from tests.patience import wait_until


@contextmanager
def serve_app(app: ASGIApp) -> Iterator[str]:
    """Serve the application in a thread, yield the address, and stop the server at the end."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, what="the server starts")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
