"""The configuration of uvicorn that all servers of a cluster share.

uvicorn only serves HTTP: the application writes the log, and no client is trusted to name the
address or the protocol of another one.
"""

import asyncio

from starlette.types import ASGIApp
from uvicorn.config import Config


def build_uvicorn_config(
    app: ASGIApp,
    *,
    http: type[asyncio.Protocol] | str = "h11",
    keep_alive_seconds: int,
    close_seconds_max: int,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> Config:
    """Return the configuration of a server for `app`, without opening a socket.

    Args:
        http: uvicorn's option of that name: the class of connections, or the name of a parser.
        keep_alive_seconds: how long an idle connection stays open between two requests.
        close_seconds_max: how long a closing server waits for unfinished responses.
        host, port: the address to listen at. A server that is run with a socket ignores both.
    """
    return Config(
        app,
        loop="asyncio",
        http=http,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive_seconds,
        timeout_graceful_shutdown=close_seconds_max,
        host=host,
        port=port,
    )
