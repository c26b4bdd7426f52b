"""The instance's metadata, by Compute Engine's metadata server."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import urlencode

ENDPOINT = "169.254.169.254"
ENDPOINT_VARIABLE = "GCE_METADATA_HOST"
"""Names another server, as HOST:PORT; Google's own clients take it, too."""
ANSWER_SECONDS = 2.0
ANSWER_BYTES_MAX = 64 * 1024
_FLAVOR = "Metadata-Flavor"
_GOOGLE = "Google"


class MetadataUnavailable(OSError):
    """There was no answer, or none that can be used."""


class MetadataValue(NamedTuple):
    """A value, None where there is none, and the tag of its version."""

    text: str | None
    etag: str


class GceMetadata:
    """The metadata at `endpoint`, HOST or HOST:PORT. May be used by several threads."""

    def __init__(self, endpoint: str = ENDPOINT) -> None:
        self._place = f"http://{endpoint}/computeMetadata/v1"
        # The address is this machine's own: a proxy would ask for another one's.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **parameters: str) -> str | None:
        """The text at `path`, such as instance/name; None if there is none.

        Raises MetadataUnavailable.
        """
        return self._read(path, parameters, ANSWER_SECONDS).text

    def require(self, path: str, **parameters: str) -> str:
        """The text at `path`. Raises OSError where there is none, or no answer."""
        text = self.get(path, **parameters)
        if not text:
            raise OSError(f"this machine's metadata have no {path}")
        return text

    def wait_for_change(self, path: str, etag: str, seconds: int) -> MetadataValue:
        """The value at `path` once its version is another one than `etag` ("" for any), and after
        so many seconds in any case. Raises MetadataUnavailable.
        """
        if not etag:
            return self._read(path, {}, ANSWER_SECONDS)
        wait = {"wait_for_change": "true", "last_etag": etag, "timeout_sec": str(seconds)}
        return self._read(path, wait, seconds + ANSWER_SECONDS)

    def _read(self, path: str, parameters: dict[str, str], seconds: float) -> MetadataValue:
        query = f"?{urlencode(parameters)}" if parameters else ""
        request = urllib.request.Request(f"{self._place}/{path}{query}", headers={_FLAVOR: _GOOGLE})
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                content: bytes = answer.read(ANSWER_BYTES_MAX)
                headers = answer.headers
            if headers.get(_FLAVOR) != _GOOGLE:
                raise MetadataUnavailable(
                    f"{path}: the server that answers is not a metadata server"
                )
            return MetadataValue(content.decode(), headers.get("ETag") or "")
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return MetadataValue(None, "")
            raise MetadataUnavailable(f"{path}: {error}") from error
        except (OSError, ValueError, HTTPException) as error:
            raise MetadataUnavailable(f"{path}: {error}") from error


def open_metadata() -> GceMetadata:
    """Open the metadata of this machine, at the place that the environment names."""
    return GceMetadata(os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT)
