"""A trial's client of Google Cloud Storage gets its tokens from the agent."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.auth.exceptions import RefreshError

from detcloud.agent.issued_keys import StorageKeys, StorageToken, fetch_keys
from detcloud.agent.storage_credentials import CredentialServer
from detcloud.agent.trial_grants import TrialGrants
from detcloud.shared.google_credentials import (
    WAIT_SECONDS,
    AgentCredentials,
    agent_credentials,
)
from tests.raw_server import http_answer, serve_raw


@dataclass
class Cluster:
    """Source of tokens valid for `seconds`; raises TimeoutError while `is_away`."""

    seconds: float = 3600
    is_away: bool = False
    issued: int = 0

    def fetch(self, holder: str) -> StorageToken:
        if self.is_away:
            raise TimeoutError("the cluster did not answer")
        self.issued += 1
        ends_ms = int((time.time() + self.seconds) * 1000)
        return StorageToken(f"token {self.issued} of {holder}", ends_ms)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_token_is_valid_until_four_minutes_before_expiry(
    server: CredentialServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No proxy listens on port 1: a request through a proxy would fail.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    offered = server.variables("4.1", google=True)
    credentials = agent_credentials(offered)
    assert credentials is not None
    assert not credentials.valid
    credentials.refresh(None)
    assert credentials.token == "token 1 of 4.1"
    assert credentials.valid
    # The agent replaces a token that expires within 15 minutes; the client replaces a token that
    # expires within 4 minutes.
    cluster.seconds = 200
    later = agent_credentials(server.variables("5.1", google=True))
    assert later is not None
    for number in (2, 3):
        later.refresh(None)
        assert later.token == f"token {number} of 5.1"
        assert not later.valid
    assert agent_credentials({}) is None


def test_google_tokens_are_not_offered_to_aws_clients(server: CredentialServer) -> None:
    offered = server.variables("4.1", google=True)
    assert not [name for name in offered if name.startswith("AWS_")]
    assert offered["NO_GCE_CHECK"] == "true"
    with_data = server.variables("4.1", google=True, data=True)
    assert with_data["AWS_CONTAINER_CREDENTIALS_FULL_URI"].endswith("/4.1/data")


def test_type_of_the_store_selects_the_offered_credentials(tmp_path: Path) -> None:
    grants = TrialGrants("http://127.0.0.1:9", "a", lambda: None, tmp_path, print)
    storage = {"type": "gcs", "bucket": "b", "credentials": "given"}
    names = set(grants.variables("4.1", {"storage": storage}))
    own = {"DETCLOUD_STORAGE_CREDENTIALS_URI", "DETCLOUD_STORAGE_CREDENTIALS_TOKEN"}
    assert names == {*own, "NO_GCE_CHECK"}
    assert grants.variables("4.1", {"storage": {"type": "gcs", "bucket": "b"}}) == {}


def test_fetching_a_token_waits_for_an_unreachable_cluster(
    server: CredentialServer, cluster: Cluster
) -> None:
    cluster.is_away = True
    slept: list[float] = []
    logged: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        cluster.is_away = len(slept) < 2

    offered = server.variables("4.1", google=True)
    uri, token = offered["DETCLOUD_STORAGE_CREDENTIALS_URI"], server.token("4.1")
    credentials = AgentCredentials(uri, token, sleep, logged.append)
    credentials.refresh(None)
    assert credentials.token == "token 1 of 4.1"
    assert slept == [WAIT_SECONDS] * 2
    assert len(logged) == 1


def test_token_is_fetched_again_after_a_cut_answer() -> None:
    answer = http_answer(json.dumps(StorageToken("token 1", 5).to_answer()).encode())
    written: list[str] = []
    with serve_raw(answer[:-1], answer) as server:
        credentials = AgentCredentials(server.url, "token", lambda _: None, written.append)
        credentials.refresh(None)
    assert credentials.token == "token 1"
    (line,) = written
    assert "IncompleteRead" in line


@pytest.mark.parametrize("damaged", [b"[]", b"null", b'{"expires_in": null}'])
def test_token_is_fetched_again_after_an_answer_of_another_type(damaged: bytes) -> None:
    answer = http_answer(json.dumps(StorageToken("token 1", 5).to_answer()).encode())
    written: list[str] = []
    with serve_raw(http_answer(damaged), answer) as server:
        credentials = AgentCredentials(server.url, "token", lambda _: None, written.append)
        credentials.refresh(None)
    assert credentials.token == "token 1"
    assert len(written) == 1


def test_a_refused_token_is_not_retried(server: CredentialServer) -> None:
    slept: list[float] = []
    uri = server.variables("4.1", google=True)["DETCLOUD_STORAGE_CREDENTIALS_URI"]
    with pytest.raises(RefreshError, match="403"):
        AgentCredentials(uri, server.token("5.1"), slept.append).refresh(None)
    assert slept == []


class Answers:
    """Connection to a cluster with a fixed answer for allocation 4.1."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def request(self, method: str, path: str, body: Any, **options: Any) -> dict[str, Any]:
        assert (method, body) == ("POST", {"allocation": "4.1"})
        return self._answer


def test_answer_of_the_cluster_is_keys_or_a_token() -> None:
    answers: Any = Answers({"access_token": "hush", "expires_ms": 5, "later_field": 1})
    token = fetch_keys(answers, "node", "4.1")
    assert token == StorageToken("hush", 5)
    assert "hush" not in repr(token)
    fields = {"key_id": "K", "secret": "S", "session_token": "T", "expires_ms": 5}
    keys: Any = Answers(fields)
    assert fetch_keys(keys, "node", "4.1") == StorageKeys("K", "S", "T", 5)
    # An expired token has 0 seconds left.
    assert json.loads(json.dumps(token.to_answer()))["expires_in"] == 0
