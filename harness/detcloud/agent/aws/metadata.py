"""The instance's metadata, by version 2 of EC2's metadata service."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Protocol

ENDPOINT = "http://169.254.169.254"
ANSWER_SECONDS = 1.0
TOKEN_SECONDS = 21_600
ANSWER_BYTES_MAX = 64 * 1024


class InstanceMetadata(Protocol):
    """The facts that a cloud tells a machine about itself."""

    def get(self, path: str) -> str | None:
        """The text at `path`, None if there is none. Raises an exception without an answer."""


class MetadataUnavailable(OSError):
    """There was no answer, or none that can be used."""


class Ec2Metadata:
    """The metadata at `endpoint`. Not safe for several threads."""

    def __init__(self, endpoint: str = ENDPOINT) -> None:
        self._endpoint = endpoint.rstrip("/")
        # The address is this machine's own: a proxy would ask for another one's.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._token_until = 0.0

    def get(self, path: str) -> str | None:
        """The text at `path`, such as latest/meta-data/instance-id; None if there is none.

        Raises MetadataUnavailable.
        """
        try:
            return self._get(path)
        except (OSError, ValueError, HTTPException) as error:
            # Also a token that was refused: the next call fetches another.
            self._token = ""
            raise MetadataUnavailable(f"{path}: {error}") from error

    def _get(self, path: str) -> str | None:
        if not self._token or time.monotonic() >= self._token_until:
            header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            self._token = self._read("PUT", "latest/api/token", header)
            self._token_until = time.monotonic() + TOKEN_SECONDS / 2
        try:
            return self._read("GET", path, {"X-aws-ec2-metadata-token": self._token})
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    def _read(self, method: str, path: str, headers: dict[str, str]) -> str:
        url = f"{self._endpoint}/{path}"
        request = urllib.request.Request(url, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
                content: bytes = answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            error.close()
            raise
        return content.decode()
