"""Bodies of requests that are written to files of this machine."""

import hashlib
from pathlib import Path

from fastapi import Request
from starlette.requests import ClientDisconnect

from control_plane.errors import invalid


async def receive_file(request: Request, path: Path) -> tuple[str, int]:
    """Write the body to `path`, and return its SHA-256 and its size in bytes. The guard of the
    route has bounded it.

    Raises:
        RequestError: invalid, where the connection ended before the body did.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        try:
            async for block in request.stream():
                digest.update(block)
                size += len(block)
                file.write(block)
        except ClientDisconnect:
            raise invalid("", f"the connection closed after {size} bytes") from None
    return digest.hexdigest(), size
