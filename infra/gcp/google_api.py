"""Calls of Google's REST APIs with the deployer's credentials."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

import urllib3

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
# A person waits for each call; with the default timeouts, a call without network takes minutes.
SECONDS_MAX: Final = 20.0
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404

JsonObject = Mapping[str, Any]


class GoogleError(Exception):
    """A refused or unanswered call.

    `status` is the HTTP status, or 0 if no answer arrived, or no JSON object.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GoogleApi(Protocol):
    """A client of Google's REST APIs."""

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Send a request to a full URL and return the JSON answer; {} for an empty answer.

        Raise GoogleError if Google refuses the call, no JSON object arrives or credentials are
        missing.
        """
        ...


class RestApi:
    """A GoogleApi over HTTP.

    Without `credentials`, the environment's credentials are searched at the first call. Calls with
    a person's credentials count against the quotas of `project`, unless the credentials name
    another project.
    """

    def __init__(self, project: str = "", credentials: Any = None) -> None:
        self._project = project
        self._pool = urllib3.PoolManager(retries=2, timeout=SECONDS_MAX)
        self._credentials = credentials

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Send a request to a full URL and return the JSON answer; {} for an empty answer.

        Retry failed connections twice. Raise GoogleError if Google refuses the call, no JSON object
        arrives or credentials are missing.
        """
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
        return _parse_answer(answer.data)

    def _authorize(self, method: str, url: str, headers: dict[str, str]) -> None:
        """Add the token, and the project that the call counts against, to `headers`.

        Raise GoogleError if credentials are missing or not accepted.
        """
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.urllib3 import Request

        self._credentials = find_credentials(self._project, self._credentials)
        try:
            self._credentials.before_request(Request(self._pool), method, url, headers)
        except GoogleAuthError as error:
            raise no_credentials(error) from None


def find_credentials(project: str, credentials: Any = None) -> Any:
    """Return `credentials` if given, or the environment's credentials.

    If the credentials belong to a person and name no project, their calls count against the quotas
    of `project`. Raise GoogleError if credentials are missing or invalid.
    """
    from google.auth import default
    from google.auth.exceptions import GoogleAuthError

    try:
        if credentials is None:
            credentials, _ = default(scopes=(SCOPE,))
        # Unlike service accounts, people belong to no project.
        is_account = getattr(credentials, "service_account_email", None)
        if project and not is_account and not credentials.quota_project_id:
            credentials = credentials.with_quota_project(project)
    except GoogleAuthError as error:
        raise no_credentials(error) from None
    return credentials


def no_credentials(error: Exception) -> GoogleError:
    """Return the GoogleError with status UNAUTHORIZED for an error about credentials."""
    text = str(error.args[0] if error.args else error)
    return GoogleError(UNAUTHORIZED, f"no credentials: {text}")


def read_or_none(api: GoogleApi, url: str) -> JsonObject | None:
    """Return the resource at a URL.

    Return None if the resource does not exist. Raise GoogleError for other failures.
    """
    try:
        return api.call("GET", url)
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def is_deleted(found: JsonObject) -> bool:
    """Return whether Google lists a resource although the resource is deleted."""
    return bool(found.get("deleted")) or found.get("state") == "DELETED"


def read_pages(api: GoogleApi, url: str) -> Iterator[JsonObject]:
    """Yield all pages of the list at a URL; call Google for each page when needed.

    Raise GoogleError if a call fails.
    """
    token = ""
    while True:
        mark = "&" if "?" in url else "?"
        page = api.call("GET", f"{url}{mark}pageToken={quote(token, safe='')}" if token else url)
        yield page
        token = page.get("nextPageToken", "")
        if not token:
            return


def _parse_answer(content: bytes) -> JsonObject:
    """Return an answer's JSON object; {} for an empty answer. Raise GoogleError for other content.

    A proxy on the way may answer with a page.
    """
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise GoogleError(0, "the answer is not a JSON object: a proxy may have sent it")
    return found


def describe_refusal(content: bytes) -> str:
    """Return the error message of an answer's body, at most 500 characters; "" without any."""
    try:
        error = json.loads(content)["error"]
        return str(error["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return ""
