"""A client of EC2's metadata service, version 2, which describes the instance."""

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
    """A reader of the facts that a cloud publishes to a machine about the machine."""

    def get(self, path: str) -> str | None:
        """Read the text at a path. Return None if the path does not exist.

        Raise an exception, usually an OSError, if no usable answer comes.
        """


class MetadataUnavailable(OSError):
    """The metadata service gave no answer, or no usable answer."""


class Ec2Metadata:
    """The metadata of the service at the URL `endpoint`. Not safe for several threads.

    The session token of the service is cached and renewed after 3 hours. Answers are cut off after
    64 KiB.
    """

    def __init__(self, endpoint: str = ENDPOINT) -> None:
        self._endpoint = endpoint.rstrip("/")
        # The address is link-local: a proxy would return the metadata of its own machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._token_until = 0.0

    def get(self, path: str) -> str | None:
        """Read the text at a path, for example latest/meta-data/instance-id.

        Return None if the path does not exist. Raise MetadataUnavailable if the service gives no
        usable answer within ANSWER_SECONDS. After an error, the next call fetches a new token.
        """
        try:
            return self._get(path)
        except (OSError, ValueError, HTTPException) as error:
            # The service may have refused the token, so the next call fetches a new token.
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
