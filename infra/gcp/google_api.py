"""Calls of Google's interfaces over REST, with the credentials of whoever deploys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import urllib3

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
# Somebody waits, and where there is no way to Google each call would wait for minutes.
SECONDS_MAX: Final = 20.0
NOT_FOUND: Final = 404

JsonObject = Mapping[str, Any]


class GoogleError(Exception):
    """Google refused a call, or gave no answer: then `status` is 0."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GoogleApi(Protocol):
    """Calls of Google's interfaces, by whole addresses."""

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Make a call. Raises GoogleError."""
        ...


class RestApi:
    """Google's interfaces, with the environment's credentials, which are looked for at the first
    call.
    """

    def __init__(self) -> None:
        self._pool = urllib3.PoolManager(retries=2, timeout=SECONDS_MAX)
        self._credentials: Any = None

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Make a call. Raises GoogleError."""
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, url, body=content, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise GoogleError(0, f"no answer: {type(error).__name__}") from None
        if answer.status >= 400:
            raise GoogleError(answer.status, _message(answer.data) or f"status {answer.status}")
        found: JsonObject = json.loads(answer.data or b"{}")
        return found

    def _token(self) -> str:
        from google.auth import default
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.urllib3 import Request

        try:
            if self._credentials is None:
                self._credentials, _ = default(scopes=(SCOPE,))
            if not self._credentials.valid:
                self._credentials.refresh(Request(self._pool))
        except GoogleAuthError as error:
            text = str(error.args[0] if error.args else error)
            raise GoogleError(401, f"no credentials: {text}") from None
        return str(self._credentials.token)


def read_or_none(api: GoogleApi, url: str) -> JsonObject | None:
    """Return what is at an address, or None where nothing is. Raises GoogleError."""
    try:
        return api.call("GET", url)
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def read_pages(api: GoogleApi, url: str) -> Iterator[JsonObject]:
    """Yield the pages of a list. Raises GoogleError."""
    token = ""
    while True:
        mark = "&" if "?" in url else "?"
        page = api.call("GET", f"{url}{mark}pageToken={token}" if token else url)
        yield page
        token = page.get("nextPageToken", "")
        if not token:
            return


def _message(content: bytes) -> str:
    """Return what an answer says went wrong, "" where it says nothing."""
    try:
        error = json.loads(content)["error"]
        return str(error["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return ""
