"""Calls of Google's interfaces over REST, with the deployer's credentials."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import urllib3

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
# Somebody waits, and where there is no way to Google each call would wait for minutes.
SECONDS_MAX: Final = 20.0
UNAUTHORIZED: Final = 401
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
    call unless some are given. Calls with those of people count against `project`, unless they name
    one.
    """

    def __init__(self, project: str = "", credentials: Any = None) -> None:
        self._project = project
        self._pool = urllib3.PoolManager(retries=2, timeout=SECONDS_MAX)
        self._credentials = credentials

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Make a call. Raises GoogleError."""
        headers = {"Content-Type": "application/json"}
        self._authorize(method, url, headers)
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, url, body=content, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise GoogleError(0, f"no answer: {type(error).__name__}") from None
        if answer.status >= 400:
            text = describe_refusal(answer.data) or f"status {answer.status}"
            raise GoogleError(answer.status, text)
        found: JsonObject = json.loads(answer.data or b"{}")
        return found

    def _authorize(self, method: str, url: str, headers: dict[str, str]) -> None:
        """Add the token to the headers, and the project that the call counts against."""
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.urllib3 import Request

        self._credentials = find_credentials(self._project, self._credentials)
        try:
            self._credentials.before_request(Request(self._pool), method, url, headers)
        except GoogleAuthError as error:
            raise no_credentials(error) from None


def find_credentials(project: str, credentials: Any = None) -> Any:
    """Return the credentials, those of the environment for None, whose calls count against
    `project` where they are a person's and name no other. Raises GoogleError.
    """
    from google.auth import default
    from google.auth.exceptions import GoogleAuthError

    try:
        if credentials is None:
            credentials, _ = default(scopes=(SCOPE,))
        # Those of people have no project of their own.
        is_account = getattr(credentials, "service_account_email", None)
        if project and not is_account and not credentials.quota_project_id:
            credentials = credentials.with_quota_project(project)
    except GoogleAuthError as error:
        raise no_credentials(error) from None
    return credentials


def no_credentials(error: Exception) -> GoogleError:
    """The GoogleError of credentials that are not there, or not accepted."""
    text = str(error.args[0] if error.args else error)
    return GoogleError(UNAUTHORIZED, f"no credentials: {text}")


def read_or_none(api: GoogleApi, url: str) -> JsonObject | None:
    """Read the resource at a URL; returns None if it does not exist. Raises GoogleError."""
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


def describe_refusal(content: bytes) -> str:
    """Return what an answer says went wrong, "" where it says nothing."""
    try:
        error = json.loads(content)["error"]
        return str(error["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return ""
