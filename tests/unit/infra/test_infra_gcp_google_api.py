"""Calls of Google's interfaces over REST."""

from email.message import Message

import pytest
from google.oauth2.credentials import Credentials

from infra.gcp.google_api import GoogleError, RestApi
from tests.raw_server import http_answer, serve_raw

QUOTA = "x-goog-user-project"


def headers_of(api: RestApi) -> Message:
    """Make a call and return its headers."""
    with serve_raw(http_answer(b"{}")) as server:
        api.call("GET", server.url)
        return server.headers()


def test_user_credentials_use_the_projects_quota() -> None:
    headers = headers_of(RestApi("acme-ml", Credentials("t")))
    assert (headers["authorization"], headers[QUOTA]) == ("Bearer t", "acme-ml")
    own = Credentials("t", quota_project_id="own")
    assert headers_of(RestApi("acme-ml", own))[QUOTA] == "own"


@pytest.mark.parametrize("content", [b"<html>Sign in</html>", b"\xff", b"[]", b"null"])
def test_answer_without_json_object_is_an_error(content: bytes) -> None:
    api = RestApi("acme-ml", Credentials("t"))
    with (
        serve_raw(http_answer(content)) as server,
        pytest.raises(GoogleError, match="is not a JSON object") as raised,
    ):
        api.call("GET", server.url)
    assert raised.value.status == 0
