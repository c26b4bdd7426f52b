"""The relay's process, `python -m relay`: listens on PORT until SIGTERM.

DETCLOUD_RELAY_SECRET has the secret by which the API signs tickets, in base64. The platform
terminates TLS.
"""

import asyncio
import base64
import binascii
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping

from detcloud.shared.tunnel.tickets import SECRET_BYTES_MIN
from relay.server import Relay

SECRET_VARIABLE = "DETCLOUD_RELAY_SECRET"
PORT_VARIABLE = "PORT"
HOST_VARIABLE = "DETCLOUD_RELAY_HOST"
DEFAULT_PORT = 8080


class VariableInvalid(ValueError):
    """An environment variable of the relay is missing or invalid."""


def main() -> int:
    """Run a relay until SIGTERM or SIGINT. Return 2 if a variable is invalid or a port is taken."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        secret, host, port = read_variables(os.environ)
        asyncio.run(_serve(secret, host, port))
    except (VariableInvalid, OSError) as error:
        print(f"detcloud relay: {error}", file=sys.stderr)
        return 2
    return 0


def read_variables(environment: Mapping[str, str]) -> tuple[bytes, str, int]:
    """Return the secret, the address and the port. Raise VariableInvalid, without the secret."""
    try:
        secret = base64.b64decode(environment.get(SECRET_VARIABLE, ""), validate=True)
    except binascii.Error:
        raise VariableInvalid(f"{SECRET_VARIABLE} is not base64") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise VariableInvalid(
            f"{SECRET_VARIABLE} has {len(secret)} bytes; expected at least {SECRET_BYTES_MIN}"
        )
    port = environment.get(PORT_VARIABLE, str(DEFAULT_PORT))
    if not (port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise VariableInvalid(f"{PORT_VARIABLE} is {port!r}; expected a port, 0 to 65535")
    return secret, environment.get(HOST_VARIABLE, "0.0.0.0"), int(port)


async def _serve(secret: bytes, host: str, port: int) -> None:
    relay = Relay(secret, lambda: time.time_ns() // 1_000_000)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    bound = await relay.start(host, port)
    print(f"detcloud relay: listens on port {bound}", flush=True)
    await stopped.wait()
    await relay.stop()


if __name__ == "__main__":
    sys.exit(main())
