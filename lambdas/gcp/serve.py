"""`python -m lambdas.gcp.serve`: serve the function named by DETCLOUD_FUNCTION at the port $PORT.

With the name RELAY, serve the relay of tunnels. This is the command of the functions' containers.
"""

import os
import sys
from importlib import import_module

from uvicorn.server import Server

from lambdas.gcp.function_names import FUNCTIONS, RELAY
from lambdas.uvicorn_config import build_uvicorn_config

# Cloud Run kills an instance ten seconds after SIGTERM.
CLOSE_SECONDS_MAX = 8
# Longer than Google's front keeps an idle connection.
KEEP_ALIVE_SECONDS = 620


def main() -> int:
    """Serve the function or the relay until SIGTERM, then return 0.

    If DETCLOUD_FUNCTION is neither in FUNCTIONS nor RELAY, print an error to stderr and return 2.
    Listen at DETCLOUD_HOST, by default all addresses, and at PORT, by default 8080. The process
    ends with a non-zero status if the port is not available.
    """
    name = os.environ.get("DETCLOUD_FUNCTION", "")
    if name == RELAY:
        status: int = import_module("relay.__main__").main()
        return status
    if name not in FUNCTIONS:
        known = ", ".join((*FUNCTIONS, RELAY))
        print(f"DETCLOUD_FUNCTION is {name!r}: expected one of {known}", file=sys.stderr)
        return 2
    config = build_uvicorn_config(
        import_module(f"lambdas.gcp.{name}").app,
        keep_alive_seconds=KEEP_ALIVE_SECONDS,
        close_seconds_max=CLOSE_SECONDS_MAX,
        host=os.environ.get("DETCLOUD_HOST", "0.0.0.0"),
        port=int(os.environ.get("PORT", "8080")),
    )
    Server(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
