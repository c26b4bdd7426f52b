"""Bodies of requests that are written to files of this machine."""

import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from control_plane.errors import invalid


@asynccontextmanager
async def received_body(
    request: Request, new_hash: Callable[[], Any] = hashlib.sha256
) -> AsyncIterator[tuple[Path, str]]:
    """Keep the body in a file of its own for the length of the block; its path and digest. Raises
    as `receive_file`.
    """
    with tempfile.TemporaryDirectory(prefix="detcloud-put-") as folder:
        path = Path(folder) / "content"
        digest, _ = await receive_file(request, path, new_hash)
        yield path, digest


async def receive_file(
    request: Request, path: Path, new_hash: Callable[[], Any] = hashlib.sha256
) -> tuple[str, int]:
    """Write the body to `path`, and return its digest and its size in bytes. The guard of the route
    has bounded it.

    Raises:
        RequestError: invalid, where the connection ended before the body did.
    """
    digest, size = new_hash(), 0
    with path.open("wb") as file:
        try:
            async for block in request.stream():
                digest.update(block)
                size += len(block)
                file.write(block)
        except ClientDisconnect:
            raise invalid("", f"the connection closed after {size} bytes") from None
    return str(digest.hexdigest()), size
