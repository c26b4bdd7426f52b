"""Requests to Compute Engine and to the catalogue of prices, over REST, each made once, with
Google's errors translated to ours.

Google's client of Compute Engine takes 1.5 s to import, which would be most of a function's start.
`DETCLOUD_COMPUTE_ENDPOINT` and `DETCLOUD_BILLING_ENDPOINT` name other addresses than Google's,
which get no credentials of Google's: none, or those of another token service, where
`DETCLOUD_STS_ENDPOINT` names one.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from google.auth import default as default_credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.urllib3 import Request

from provisioner.clouds.gcp.errors import answer_error
from provisioner.clouds.provider import NotAllowed, OutcomeUnknown

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
COMPUTE_PATH = "/compute/v1/projects"
COMPUTE = f"https://compute.googleapis.com{COMPUTE_PATH}"
BILLING = "https://cloudbilling.googleapis.com/v1"
CONNECT_SECONDS_MAX = 3.0
# Later than this the next pass asks again with the same token.
ANSWER_SECONDS_MAX = 15.0
CATALOGUE_SECONDS_MAX = 4.0
# Requests at once: those that end instances are one for each.
CONNECTIONS_MAX = 8

# Google compresses answers for agents alone that name the method as well.
_HEADERS = {
    "Content-Type": "application/json",
    "Accept-Encoding": "gzip",
    "User-Agent": "detcloud (gzip)",
}

JsonObject = Mapping[str, Any]
Authorize = Callable[[str, str], Mapping[str, str]]
"""Makes the headers that let a request, of a method and a URL, do what it asks for."""


def create_compute_api(credentials: Any = None) -> "GoogleApi":
    """Create an API of Compute Engine's calls below `projects`, with the credentials, or else those
    of the environment, which are looked for at the first call.
    """
    pool = _connection_pool(ANSWER_SECONDS_MAX)
    other = os.environ.get("DETCLOUD_COMPUTE_ENDPOINT")
    if other:
        root = other.rstrip("/") + COMPUTE_PATH
        return GoogleApi(pool, _headers_elsewhere(pool, credentials), root)
    return GoogleApi(pool, _CredentialHeaders(pool, credentials), COMPUTE)


def create_billing_api(credentials: Any = None) -> "GoogleApi":
    """Create an API of the catalogue of prices that holds up no tick for long, with credentials as
    `create_compute_api` has them.
    """
    pool = _connection_pool(CATALOGUE_SECONDS_MAX)
    other = os.environ.get("DETCLOUD_BILLING_ENDPOINT")
    if other:
        return GoogleApi(pool, _headers_elsewhere(pool, credentials), other.rstrip("/"))
    return GoogleApi(pool, _CredentialHeaders(pool, credentials), BILLING)


def _connection_pool(answer_seconds: float) -> urllib3.PoolManager:
    return urllib3.PoolManager(
        maxsize=CONNECTIONS_MAX,
        retries=False,
        timeout=urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=answer_seconds),
    )


def _headers_elsewhere(pool: urllib3.PoolManager, credentials: Any) -> Authorize:
    """Return what authorizes requests to an address that is not Google's."""
    if credentials is not None and os.environ.get("DETCLOUD_STS_ENDPOINT"):
        return _CredentialHeaders(pool, credentials)
    return lambda method, url: {}


class _CredentialHeaders:
    """The headers of the credentials, or of the environment's."""

    def __init__(self, pool: urllib3.PoolManager, credentials: Any) -> None:
        self._request = Request(pool)
        self._credentials = credentials

    def __call__(self, method: str, url: str) -> Mapping[str, str]:
        if self._credentials is None:
            self._credentials, _ = default_credentials(scopes=(SCOPE,))
        headers: dict[str, str] = {}
        self._credentials.before_request(self._request, method, url, headers)
        return headers


class GoogleApi:
    """Calls below the URL `root`; may be used concurrently by many threads.

    Every method raises CloudError, whose causes are left out: theirs hold what no log should.
    """

    def __init__(self, pool: urllib3.PoolManager, authorize: Authorize, root: str) -> None:
        self._pool = pool
        self._authorize = authorize
        self._url = root

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def get(self, path: str, **query: Any) -> JsonObject:
        """Read what is at a path."""
        return self._send("GET", path, query)

    def post(self, path: str, body: JsonObject, **query: Any) -> JsonObject:
        """Ask for something to be made, which answers with an operation."""
        return self._send("POST", path, query, json.dumps(body, separators=(",", ":")).encode())

    def delete(self, path: str) -> JsonObject:
        """Ask for something to be deleted, which answers with an operation."""
        return self._send("DELETE", path, {})

    def read_pages(self, path: str, **query: Any) -> Iterator[JsonObject]:
        """Read every page of a list."""
        token = ""
        while True:
            page = self.get(path, **query, **({"pageToken": token} if token else {}))
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _send(
        self, method: str, path: str, query: Mapping[str, Any], body: bytes | None = None
    ) -> JsonObject:
        url = f"{self._url}/{quote(path)}?{urlencode({'prettyPrint': 'false', **query})}"
        try:
            headers = {**_HEADERS, **self._authorize(method, url)}
        except GoogleAuthError as error:
            text = f"no access to Google Cloud: {type(error).__name__}"
            raise (OutcomeUnknown(text) if error.retryable else NotAllowed(text)) from None
        try:
            answer = self._pool.request(method, url, body=body, headers=headers, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            raise OutcomeUnknown(f"Google Cloud did not answer: {type(error).__name__}") from None
        try:
            content = json.loads(answer.data)
        except ValueError:
            content = None
        if answer.status != 200:
            raise answer_error(answer.status, content)
        if not isinstance(content, dict):
            raise OutcomeUnknown("Google Cloud did not respond with a JSON object")
        return content
