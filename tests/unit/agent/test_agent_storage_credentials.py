"""A trial fetches its storage keys from the agent, and cannot fetch keys of other trials."""

import json
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import MetadataRetrievalError
from botocore.session import Session

from detcloud.agent.issued_keys import StorageKeys
from detcloud.agent.storage_credentials import HOST, PORTS, RENEW_SECONDS, CredentialServer
from detcloud.agent.trial_grants import TrialGrants
from detcloud.shared.aws import WAIT_SECONDS, PatientFetcher
from detcloud.shared.http import ApiError

URI, TOKEN = "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN"


@dataclass
class Cluster:
    """Source of keys valid for `seconds`; raises TimeoutError while `is_away`."""

    seconds: float = 3600
    is_away: bool = False
    requests: list[str] = field(default_factory=list)

    def fetch(self, allocation: str) -> StorageKeys:
        if self.is_away:
            raise TimeoutError("the cluster did not answer")
        self.requests.append(allocation)
        ends_ms = int((time.time() + self.seconds) * 1000)
        return StorageKeys(f"KEY{len(self.requests)}", "hush", f"session of {allocation}", ends_ms)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def ask(uri: str, token: str | None) -> tuple[int, dict[str, Any]]:
    headers = {} if token is None else {"Authorization": token}
    try:
        with urllib.request.urlopen(urllib.request.Request(uri, headers=headers)) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_aws_client_finds_the_keys(
    server: CredentialServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.variables("4.1").items():
        monkeypatch.setenv(name, value)
    keys = Session().get_credentials().get_frozen_credentials()
    assert (keys.access_key, keys.secret_key, keys.token) == (
        "KEY1",
        "hush",
        "session of 4.1",
    )


def test_code_and_store_get_separate_keys(server: CredentialServer, cluster: Cluster) -> None:
    offered = server.variables("4.1", data=True)
    store = (
        offered["DETCLOUD_STORAGE_CREDENTIALS_URI"],
        offered["DETCLOUD_STORAGE_CREDENTIALS_TOKEN"],
    )
    assert ask(*store)[1]["Token"] == "session of 4.1"
    assert ask(offered[URI], offered[TOKEN])[1]["Token"] == "session of 4.1/data"
    # The tokens of store and code are not interchangeable.
    assert ask(store[0], offered[TOKEN])[0] == ask(offered[URI], store[1])[0] == 403
    assert cluster.requests == ["4.1", "4.1/data"]


def test_a_store_with_configured_keys_is_offered_no_keys(server: CredentialServer) -> None:
    offered = server.variables("4.1", storage=False, data=True)
    assert not [name for name in offered if name.startswith("DETCLOUD_")]


def test_region_is_offered_to_store_and_code(tmp_path: Path) -> None:
    grants = TrialGrants("http://127.0.0.1:9", "a", lambda: None, tmp_path, print, "eu-west-3")
    code = {"AWS_DEFAULT_REGION", "AWS_REGION"}
    assert set(grants.variables("4.1", {})) == code
    assert not (tmp_path / "credentials.json").exists()
    given = grants.variables("4.1", {"storage": {"credentials": "given"}})
    names = {name for name, value in given.items() if value == "eu-west-3"}
    assert names == {*code, "DETCLOUD_STORAGE_REGION"}
    nowhere = TrialGrants("http://127.0.0.1:9", "a", lambda: None, tmp_path, print)
    assert nowhere.variables("4.1", {}) == {}


def test_token_of_a_foreign_trial_is_refused(server: CredentialServer, cluster: Cluster) -> None:
    own, other = server.variables("4.1"), server.variables("5.1")
    for token in (other[TOKEN], "", None, own[TOKEN][:-1]):
        assert ask(own[URI], token)[0] == 403
    assert ask(other[URI], own[TOKEN])[0] == 403
    assert ask(own[URI] + "/", own[TOKEN])[0] == 403
    assert cluster.requests == []


def test_keys_are_renewed_before_expiry(server: CredentialServer, cluster: Cluster) -> None:
    cluster.seconds = RENEW_SECONDS + 60
    assert server.valid_keys("4.1") == server.valid_keys("4.1")
    assert cluster.requests == ["4.1"]
    server.valid_keys("5.1")
    cluster.seconds = RENEW_SECONDS - 60
    assert cluster.requests == ["4.1", "5.1"]
    assert server.valid_keys("6.1") != server.valid_keys("6.1")


def test_valid_keys_are_served_while_the_cluster_is_unreachable(
    server: CredentialServer, cluster: Cluster
) -> None:
    cluster.seconds = RENEW_SECONDS - 60
    own = server.variables("4.1")
    first = ask(own[URI], own[TOKEN])
    cluster.is_away = True
    assert ask(own[URI], own[TOKEN]) == first
    other = server.variables("5.1")
    assert ask(other[URI], other[TOKEN])[0] == 503


def test_a_restarted_credential_server_keeps_address_and_token(
    tmp_path: Path, cluster: Cluster
) -> None:
    first = CredentialServer(tmp_path, cluster.fetch, print)
    known = first.variables("4.1")
    first.close()
    second = CredentialServer(tmp_path, cluster.fetch, print)
    assert second.variables("4.1") == known
    assert ask(known[URI], known[TOKEN])[0] == 200
    second.close()


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(number)]
        return [server.getsockname()[1] for server in sockets]


def test_credential_server_prefers_a_privileged_port(tmp_path: Path, cluster: Cluster) -> None:
    assert 0 < min(PORTS) <= max(PORTS) < 1024
    first, second = ports = free_ports(2)
    with socket.create_server((HOST, first)):
        running = CredentialServer(tmp_path, cluster.fetch, print, ports)
        assert f":{second}/" in running.variables("4.1")[URI]
        # Both ports are taken: the server takes any free port.
        (tmp_path / "other").mkdir()
        other = CredentialServer(tmp_path / "other", cluster.fetch, print, ports)
    known = other.variables("4.1")
    assert ask(known[URI], known[TOKEN])[0] == 200
    running.close()
    other.close()


def test_credential_server_waits_for_its_occupied_port(tmp_path: Path, cluster: Cluster) -> None:
    first = CredentialServer(tmp_path, cluster.fetch, print)
    known = first.variables("4.1")
    first.close()
    port = int(known[URI].split(":")[2].partition("/")[0])
    taken, logged = socket.create_server((HOST, port)), list[str]()

    def log_line(message: str) -> None:
        logged.append(message)
        threading.Timer(0.1, taken.close).start()

    second = CredentialServer(tmp_path, cluster.fetch, log_line, retry_seconds=0.01)
    assert second.variables("4.1") == known
    (message,) = logged
    assert f"port {port} of 127.0.0.1" in message
    assert "trying again" in message
    second.close()


def test_stored_tokens_are_private_and_keys_are_never_printed(
    server: CredentialServer, tmp_path: Path
) -> None:
    (kept,) = tmp_path.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "hush" not in kept.read_text()
    shown = repr(server.valid_keys("4.1"))
    assert "hush" not in shown
    assert "session of" not in shown


def test_fetching_keys_waits_for_an_unreachable_cluster(
    server: CredentialServer, cluster: Cluster
) -> None:
    """Every fetch fails until the second long wait."""
    cluster.is_away = True
    slept: list[float] = []
    logged: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        # Three attempts of AWS's client, a second apart, and then a long wait; all twice.
        cluster.is_away = slept.count(WAIT_SECONDS) < 2

    fetcher = PatientFetcher(sleep, logged.append)
    variables = server.variables("4.1")
    headers = {"Authorization": variables[TOKEN]}
    keys = fetcher.retrieve_full_uri(variables[URI], headers)
    assert keys["AccessKeyId"] == "KEY1"
    assert slept == [1, 1, 1, WAIT_SECONDS] * 2
    assert len(logged) == 1


def test_refused_keys_are_not_retried(server: CredentialServer) -> None:
    slept: list[float] = []
    uri = server.variables("4.1")[URI]
    with pytest.raises(MetadataRetrievalError, match="403"):
        PatientFetcher(slept.append, print).retrieve_full_uri(uri, {"Authorization": "another"})
    assert WAIT_SECONDS not in slept


@pytest.mark.parametrize(("status", "answered"), [(403, 403), (404, 403), (401, 503), (503, 503)])
def test_refusals_are_403_and_outages_are_503(tmp_path: Path, status: int, answered: int) -> None:
    def fetch(allocation: str) -> StorageKeys:
        raise ApiError(status, "code", "no", [])

    running = CredentialServer(tmp_path, fetch, print)
    try:
        variables = running.variables("4.1")
        assert ask(variables[URI], variables[TOKEN])[0] == answered
    finally:
        running.close()
