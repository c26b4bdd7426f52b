"""REST requests to Compute Engine and to the Cloud Billing Catalog, without retries.

Google's errors are translated to CloudErrors. Google's own client of Compute Engine is not used: it
takes 1.5 s to import, most of a function's start.

`DETCLOUD_COMPUTE_ENDPOINT` and `DETCLOUD_BILLING_ENDPOINT` replace Google's addresses. A replaced
address gets no credentials, unless `DETCLOUD_STS_ENDPOINT` names a token service for them.
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
# After this time without a response, the next pass repeats the request with its token.
ANSWER_SECONDS_MAX = 15.0
CATALOGUE_SECONDS_MAX = 4.0
# The number of concurrent requests; the deletion of each instance is a request.
CONNECTIONS_MAX = 8

# Google compresses responses only if the user agent contains "gzip" too.
_HEADERS = {
    "Content-Type": "application/json",
    "Accept-Encoding": "gzip",
    "User-Agent": "detcloud (gzip)",
}

JsonObject = Mapping[str, Any]
Authorize = Callable[[str, str], Mapping[str, str]]
"""Returns the authorization headers for a request, given its method and URL."""


def create_compute_api(credentials: Any = None) -> "GoogleApi":
    """Create an API for Compute Engine calls, with paths that begin with a project.

    No call is made yet. A call raises OutcomeUnknown after CONNECT_SECONDS_MAX without a
    connection, and after ANSWER_SECONDS_MAX without data from Google. Without `credentials`, the
    environment's credentials are loaded at the first call. DETCLOUD_COMPUTE_ENDPOINT replaces
    Google's address, which then gets no credentials, unless `credentials` are given and
    DETCLOUD_STS_ENDPOINT is set. The variables are read now.
    """
    pool = _connection_pool(ANSWER_SECONDS_MAX)
    other = os.environ.get("DETCLOUD_COMPUTE_ENDPOINT")
    if other:
        root = other.rstrip("/") + COMPUTE_PATH
        return GoogleApi(pool, _headers_elsewhere(pool, credentials), root)
    return GoogleApi(pool, _CredentialHeaders(pool, credentials), COMPUTE)


def create_billing_api(credentials: Any = None) -> "GoogleApi":
    """Create an API for the Cloud Billing Catalog, with a short timeout; make no call yet.

    A call raises OutcomeUnknown after CONNECT_SECONDS_MAX without a connection, and after
    CATALOGUE_SECONDS_MAX without data from Google. Without `credentials`, the environment's
    credentials are loaded at the first call. DETCLOUD_BILLING_ENDPOINT replaces Google's address,
    which then gets no credentials, unless `credentials` are given and DETCLOUD_STS_ENDPOINT is set.
    The variables are read now.
    """
    pool = _connection_pool(CATALOGUE_SECONDS_MAX)
    other = os.environ.get("DETCLOUD_BILLING_ENDPOINT")
    if other:
        return GoogleApi(pool, _headers_elsewhere(pool, credentials), other.rstrip("/"))
    return GoogleApi(pool, _CredentialHeaders(pool, credentials), BILLING)


def _connection_pool(answer_seconds: float) -> urllib3.PoolManager:
    """Create a pool of connections without retries; connect to no host yet.

    A request fails after CONNECT_SECONDS_MAX without a connection, and after `answer_seconds`
    without data from the server.
    """
    return urllib3.PoolManager(
        maxsize=CONNECTIONS_MAX,
        retries=False,
        timeout=urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=answer_seconds),
    )


def _headers_elsewhere(pool: urllib3.PoolManager, credentials: Any) -> Authorize:
    """Return the authorization of requests to an address that is not Google's.

    Requests get no headers, unless `credentials` are given and DETCLOUD_STS_ENDPOINT names a token
    service.
    """
    if credentials is not None and os.environ.get("DETCLOUD_STS_ENDPOINT"):
        return _CredentialHeaders(pool, credentials)
    return lambda method, url: {}


class _CredentialHeaders:
    """The authorization by the given credentials, or else by the environment's."""

    def __init__(self, pool: urllib3.PoolManager, credentials: Any) -> None:
        self._request = Request(pool)
        self._credentials = credentials

    def __call__(self, method: str, url: str) -> Mapping[str, str]:
        """Return the authorization headers of a request.

        Load the environment's credentials at the first call if none were given, and keep them.
        Request a token at the first call and after the last token has expired. Raises
        GoogleAuthError if no credentials exist or no token is returned; the next call tries again.
        """
        if self._credentials is None:
            self._credentials, _ = default_credentials(scopes=(SCOPE,))
        headers: dict[str, str] = {}
        self._credentials.before_request(self._request, method, url, headers)
        return headers


class GoogleApi:
    """JSON calls to paths below the URL `root`. Safe for concurrent threads.

    Every method raises CloudError, without a cause, which may contain secrets.
    """

    def __init__(self, pool: urllib3.PoolManager, authorize: Authorize, root: str) -> None:
        self._pool = pool
        self._authorize = authorize
        self._url = root

    def close(self) -> None:
        """Close idle connections now, and busy connections after the present requests.

        Later calls open new connections.
        """
        self._pool.clear()

    def get(self, path: str, **query: Any) -> JsonObject:
        """Return the JSON object of the resource at a path below the root; `query` is in the URL.

        The request is sent once, without retries. Raises CloudError, also for a missing resource.
        """
        return self._send("GET", path, query)

    def post(self, path: str, body: JsonObject, **query: Any) -> JsonObject:
        """Request a creation with the parameters in `body`; return the operation.

        The operation may not be over. The request is sent once, without retries; `query` is in the
        URL. Raises CloudError; after OutcomeUnknown, the request may have been executed.
        """
        return self._send("POST", path, query, json.dumps(body, separators=(",", ":")).encode())

    def delete(self, path: str) -> JsonObject:
        """Request the deletion of the resource at a path; return the operation.

        The operation may not be over. The request is sent once, without retries. Raises CloudError,
        also for a missing resource; after OutcomeUnknown, the deletion may have been requested.
        """
        return self._send("DELETE", path, {})

    def read_pages(self, path: str, **query: Any) -> Iterator[JsonObject]:
        """Read a list page by page, and yield the pages, at least a single page.

        Each page is requested when the caller needs it; `query` is in each URL. Raises CloudError
        for a page that cannot be read, after the earlier pages were yielded.
        """
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
        """Send a request and return the JSON object of the response. A request is never retried.

        Redirects are not followed.

        Raises:
            NotAllowed: no credentials are usable.
            OutcomeUnknown: Google did not answer, the response is no JSON object, or the token
                service failed for a moment. In the last case, the request was not sent.
            CloudError: the response has an error status; the class depends on the code.
        """
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
