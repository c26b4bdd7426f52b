"""Calls of Google's interfaces over REST."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from infra.gcp.google_api import RestApi

QUOTA = "x-goog-user-project"


def headers_of(api: RestApi, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return the headers of a call."""
    seen: list[Mapping[str, str]] = []

    def request(method: str, url: str, body: object, headers: Mapping[str, str]) -> Any:
        seen.append(headers)
        return SimpleNamespace(status=200, data=b"{}")

    monkeypatch.setattr(api._pool, "request", request)
    api.call("GET", "https://example.com")
    return {name.lower(): text for name, text in seen[0].items()}


def test_calls_of_people_count_against_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = headers_of(RestApi("acme-ml", Credentials("t")), monkeypatch)
    assert (headers["authorization"], headers[QUOTA]) == ("Bearer t", "acme-ml")
    own = Credentials("t", quota_project_id="own")
    assert headers_of(RestApi("acme-ml", own), monkeypatch)[QUOTA] == "own"
