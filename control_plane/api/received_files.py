"""Storage of request bodies in local files."""

import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Request


@asynccontextmanager
async def received_body(
    request: Request, new_hash: Callable[[], Any] = hashlib.sha256
) -> AsyncIterator[tuple[Path, str]]:
    """Store the body of a request in a temporary file, which is deleted at the end of the context.

    The context gets the path and the digest of the body in hexadecimal. `new_hash` creates the hash
    of the digest, by default SHA-256.

    Raises:
        BodyError: too_large or unavailable, as `limit_body` of the guarded route.
    """
    with tempfile.TemporaryDirectory(prefix="detcloud-put-") as folder:
        path = Path(folder) / "content"
        digest, _ = await receive_file(request, path, new_hash)
        yield path, digest


async def receive_file(
    request: Request, path: Path, new_hash: Callable[[], Any] = hashlib.sha256
) -> tuple[str, int]:
    """Write the body of a request to `path`; return the digest and the size in bytes.

    The digest is hexadecimal. The route's guard limits the size. After an error, an incomplete file
    remains.

    Args:
        request: the request.
        path: the file to create or replace.
        new_hash: creates the hash of the digest, by default SHA-256.

    Raises:
        BodyError: too_large or unavailable, as `limit_body` of the guarded route.
    """
    digest, size = new_hash(), 0
    with path.open("wb") as file:
        async for block in request.stream():
            digest.update(block)
            size += len(block)
            file.write(block)
    return str(digest.hexdigest()), size
