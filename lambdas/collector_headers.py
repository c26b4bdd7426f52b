"""The headers of requests to the OpenTelemetry collector, which a deployment stores as an object.

The headers may contain a key. Variables of functions are shown to everybody who may read a
function, so the functions have only the digest of the object.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from control_plane.objects.store import ObjectStore

OBJECT: Final = "config/collector-headers.json"
DIGEST_VARIABLE: Final = "DETCLOUD_COLLECTOR_HEADERS_SHA256"
"""The variable with the SHA-256 of the object. Unset without headers."""


class HeadersUnavailable(Exception):
    """The deployed headers cannot be read. A later export tries again."""


class CollectorHeaders:
    """The deployed headers, which a process reads once.

    Args:
        objects: returns the object store with the headers.
    """

    def __init__(self, objects: Callable[[], ObjectStore]) -> None:
        self._objects = objects
        self._read: dict[str, str] | None = None

    def read(self) -> dict[str, str]:
        """Return the headers; {} without DIGEST_VARIABLE.

        Raises HeadersUnavailable if the object cannot be read, or while a deployment replaces the
        object.
        """
        expected = os.environ.get(DIGEST_VARIABLE)
        if not expected:
            return {}
        if self._read is None:
            self._read = json.loads(self._read_object(expected))
        return dict(self._read or {})

    def _read_object(self, expected: str) -> bytes:
        """Return the content of the object with the digest `expected`."""
        from control_plane.objects.store import ObjectKey

        try:
            parts: Iterable[bytes] = self._objects().get(ObjectKey(OBJECT))
            content = b"".join(parts)
        except Exception as error:
            # The SDKs of the stores raise different errors.
            raise HeadersUnavailable(f"{OBJECT} cannot be read: {error}") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise HeadersUnavailable(f"{OBJECT} is not the deployed object yet")
        return content
