"""Calls of Google's interfaces over REST."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from infra.gcp.google_api import GoogleError, RestApi

QUOTA = "x-goog-user-project"


def headers_of(api: RestApi, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Make a call and return its headers, with lowercase names."""
    seen: list[Mapping[str, str]] = []

    def request(method: str, url: str, body: object, headers: Mapping[str, str]) -> Any:
        seen.append(headers)
        return SimpleNamespace(status=200, data=b"{}")

    monkeypatch.setattr(api._pool, "request", request)
    api.call("GET", "https://example.com")
    return {name.lower(): text for name, text in seen[0].items()}


def test_user_credentials_use_the_projects_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = headers_of(RestApi("acme-ml", Credentials("t")), monkeypatch)
    assert (headers["authorization"], headers[QUOTA]) == ("Bearer t", "acme-ml")
    own = Credentials("t", quota_project_id="own")
    assert headers_of(RestApi("acme-ml", own), monkeypatch)[QUOTA] == "own"


@pytest.mark.parametrize("content", [b"<html>Sign in</html>", b"\xff", b"[]", b"null"])
def test_answer_without_json_object_is_an_error(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = RestApi("acme-ml", Credentials("t"))
    answer = SimpleNamespace(status=200, data=content)
    monkeypatch.setattr(api._pool, "request", lambda *_, **__: answer)
    with pytest.raises(GoogleError, match="is not a JSON object") as raised:
        api.call("GET", "https://example.com")
    assert raised.value.status == 0
