"""Choice of the cluster, and use of a token only for its own cluster."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detcloud import Client, DetcloudError
from detcloud.client import endpoint as endpoint_module
from detcloud.client.connection import NoCluster
from detcloud.client.endpoint import (
    Endpoint,
    find_endpoint,
    is_configured,
    remove_credentials,
)
from detcloud.client.home import Home


@contextmanager
def run_embedded(folder: Path, url: str) -> Iterator[None]:
    """Make the data folder of a running server."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"url": url, "pid": 1, "started_ms": 5, "version": "0.1.0"}
    (folder / "server.json").write_text(json.dumps(record))
    (folder / "token").write_text("embedded-token\n")
    with (folder / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def store_credentials(own_home: Path, url: str) -> None:
    (own_home / ".detcloud").mkdir()
    credentials = {"url": url, "token": "stored-token"}
    (own_home / ".detcloud" / "credentials.json").write_text(json.dumps(credentials))


def test_a_fresh_machine_has_no_endpoint(own_home: Path) -> None:
    assert find_endpoint() is None
    assert not is_configured()
    assert list(own_home.iterdir()) == []


def test_environment_overrides_stored_credentials(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    store_credentials(own_home, "http://stored")
    monkeypatch.setenv("DETCLOUD_URL", "http://env")
    monkeypatch.setenv("DETCLOUD_TOKEN", "env-token")
    assert find_endpoint() == Endpoint("http://env", "env-token")
    assert find_endpoint("http://option") == Endpoint("http://option", "env-token")
    assert is_configured()


def test_given_token_goes_to_the_configured_address(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    with pytest.raises(NoCluster):
        Client(token="given")
    store_credentials(own_home, "http://stored")
    assert Client(token="given").url == "http://stored"
    # The given token replaces the unknown token of the address http://env.
    monkeypatch.setenv("DETCLOUD_URL", "http://env")
    client = Client(token="given")
    assert (client.url, client.http.token) == ("http://env", "given")


def test_a_stored_token_is_used_only_for_its_url(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    store_credentials(own_home, "http://stored")
    assert find_endpoint() == Endpoint("http://stored", "stored-token")
    assert find_endpoint("http://stored/") == Endpoint("http://stored/", "stored-token")
    with pytest.raises(
        DetcloudError,
        match="no token for http://other is known; store one with",
    ):
        find_endpoint("http://other")


def test_embedded_cluster_is_found_while_the_lock_is_held(own_home: Path) -> None:
    home = Home(own_home / ".detcloud")
    with run_embedded(home.folder, "http://here"):
        assert find_endpoint() == Endpoint("http://here", "embedded-token", home)
        assert find_endpoint("http://here") == Endpoint("http://here", "embedded-token")
        assert not is_configured()
    assert find_endpoint() is None, "server.json was left, but nobody holds the lock"


def test_detcloud_home_overrides_stored_credentials(
    monkeypatch: pytest.MonkeyPatch, own_home: Path, tmp_path: Path
) -> None:
    store_credentials(own_home, "http://stored")
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / "data"))
    assert find_endpoint() is None
    with run_embedded(tmp_path / "data", "http://here"):
        endpoint = find_endpoint()
    assert endpoint is not None
    assert endpoint.url == "http://here"
    # A named cluster still gets the token that the user stored for the cluster.
    assert find_endpoint("http://stored") == Endpoint("http://stored", "stored-token")


def test_token_is_stored_where_the_next_command_reads(
    monkeypatch: pytest.MonkeyPatch, own_home: Path, tmp_path: Path
) -> None:
    store_credentials(own_home, "http://stored")
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / "data"))
    path = endpoint_module.store_credentials("http://lab", "lab-token")
    assert path == tmp_path / "data/credentials.json"
    assert find_endpoint() == Endpoint("http://lab", "lab-token")
    assert is_configured()
    assert remove_credentials()
    assert find_endpoint() is None
    monkeypatch.delenv("DETCLOUD_HOME")
    assert find_endpoint() == Endpoint("http://stored", "stored-token")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://x"}', '"text"'])
def test_malformed_server_and_credential_files(content: str, own_home: Path) -> None:
    folder = own_home / ".detcloud"
    with run_embedded(folder, "http://here"):
        (folder / "server.json").write_text(content)
        assert find_endpoint() is None
    (folder / "credentials.json").write_text(content)
    with pytest.raises(DetcloudError, match=r"credentials\.json could not be read"):
        find_endpoint()
