"""A client of Compute Engine's metadata server, which describes the instance."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import urlencode

ENDPOINT = "169.254.169.254"
ENDPOINT_VARIABLE = "GCE_METADATA_HOST"
"""The variable with another server's HOST or HOST:PORT. Google's own clients read it as well."""
ANSWER_SECONDS = 2.0
ANSWER_BYTES_MAX = 64 * 1024
_FLAVOR = "Metadata-Flavor"
_GOOGLE = "Google"


class MetadataUnavailable(OSError):
    """The metadata server gave no answer, or no usable answer."""


class MetadataValue(NamedTuple):
    """A value of the metadata with a version."""

    text: str | None
    """The value. None if the path does not exist."""
    etag: str
    """The tag of the value's version. "" if the path does not exist or the server sent no tag."""


class GceMetadata:
    """The metadata of the server at `endpoint`, HOST or HOST:PORT. Several threads may share it.

    Answers are cut off after 64 KiB.
    """

    def __init__(self, endpoint: str = ENDPOINT) -> None:
        self._place = f"http://{endpoint}/computeMetadata/v1"
        # The address is link-local: a proxy would return the metadata of its own machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **parameters: str) -> str | None:
        """Read the text at a path, for example instance/name.

        Return None if the path does not exist.

        `parameters` become the query of the request. Raise MetadataUnavailable if the server gives
        no usable answer within ANSWER_SECONDS.
        """
        return self._read(path, parameters, ANSWER_SECONDS).text

    def require(self, path: str, **parameters: str) -> str:
        """Read the text at a path. `parameters` become the query of the request.

        Raise OSError if the path does not exist or is empty, or if no usable answer comes.
        """
        text = self.get(path, **parameters)
        if not text:
            raise OSError(f"this machine's metadata have no {path}")
        return text

    def wait_for_change(self, path: str, etag: str, seconds: int) -> MetadataValue:
        """Wait until the version at `path` differs from `etag`, and return the value.

        Return the unchanged value after `seconds`. With an empty `etag`, return the value at once.
        Raise MetadataUnavailable if the server gives no usable answer in time.
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
    """Return a client for the server in ENDPOINT_VARIABLE, by default for ENDPOINT.

    Nothing is sent yet.
    """
    return GceMetadata(os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT)
