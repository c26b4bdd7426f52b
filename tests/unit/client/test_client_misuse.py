"""Errors on misuse of the SDK in a notebook."""

import copy
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError
from detcloud.client import Client, NoCluster
from detcloud.client.download import download_files
from detcloud.client.endpoint import configured_url, find_endpoint, is_configured
from detcloud.shared.http import ApiError, Transport, Unreachable
from tests.unit.client.fake_cluster import TOKEN, FakeCluster


@pytest.fixture
def client(fake: FakeCluster) -> Iterator[Client]:
    fake.add_experiment({"name": "digits"}, {})
    with Client(fake.url, TOKEN) as client:
        yield client


@pytest.mark.parametrize("key", ["", None, "1/2", "../agents", "..", "/"])
def test_impossible_ids_are_refused_before_a_request(
    client: Client, fake: FakeCluster, key: Any
) -> None:
    before = len(fake.requests)
    for ask in (client.experiment, client.trial, client.checkpoint, client.template):
        with pytest.raises(DetcloudError, match="cannot identify anything on a cluster"):
            ask(key)
    assert len(fake.requests) == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rate": object()}, "cannot be sent: Object of type object"),
        ({"rate": float("nan")}, "cannot be sent: Out of range float"),
        ("name: x\nentrypoint: y\n", "a text of several lines; expected the path"),
    ],
)
def test_invalid_configuration_is_refused_with_the_cause(
    client: Client, model_dir: Path, config: Any, message: str
) -> None:
    with pytest.raises(DetcloudError, match=message):
        client.create_experiment(config, model_dir)


def test_states_accepts_a_single_state(client: Client) -> None:
    assert [listed.id for listed in client.experiments(states="ACTIVE")] == [1]
    assert [listed.id for listed in client.experiments(states="ERROR")] == []


def test_a_wait_may_end_before_the_experiment(client: Client, fake: FakeCluster) -> None:
    experiment = client.experiment(1)
    fake.experiments[0]["state"] = "PAUSED"
    # Two pauses of 0.5 s make the second that is allowed.
    pauses: list[float] = []
    with pytest.raises(TimeoutError, match="experiment 1 is PAUSED after 1 s"):
        experiment.wait(0.5, sleep=pauses.append, timeout_seconds=1.0)
    assert pauses == [0.5, 0.5]


def test_handles_can_be_copied_pickled_and_used_in_threads(client: Client) -> None:
    experiment = client.experiment(1)
    for twin in (copy.deepcopy(experiment), pickle.loads(pickle.dumps(experiment))):
        twin.refresh()
        assert twin.id == 1
        twin._client.http.close()
    seen: list[str] = []

    def ask() -> None:
        with copy.deepcopy(client) as own:
            seen.append(own.whoami()["user"])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["ada", "ada"]


def test_repr_of_a_client_has_the_url_and_not_the_token(client: Client) -> None:
    assert repr(client) == f"Client({client.url!r})"


@pytest.mark.parametrize("token", ["a\nb", "a\r", "☃"])
def test_a_malformed_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="contains an invalid character") as refused:
        Transport("http://127.0.0.1:1", token)
    assert token not in str(refused.value)
    with pytest.raises(DetcloudError, match="contains an invalid character"):
        Client("http://127.0.0.1:1", token)


def test_a_malformed_url_is_refused() -> None:
    for url in ("", "ftp://x", "localhost:8080"):
        with pytest.raises(DetcloudError, match="is not an address; expected http"):
            Client(url, TOKEN)
    # An empty address comes from an unset variable: another cluster would be a surprise.
    for ask in (find_endpoint, configured_url, is_configured):
        with pytest.raises(DetcloudError, match="'' is not an address"):
            ask("")


def test_trailing_line_break_of_a_token_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DETCLOUD_TOKEN", "secret\n")
    endpoint = find_endpoint("http://x")
    assert endpoint is not None
    assert endpoint.token == "secret"


def test_text_of_an_error_contains_details() -> None:
    details: list[dict[str, Any]] = [
        {"path": "rate", "message": "must be above 0", "line": 4, "hint": "try 0.1"},
        {"path": "seed", "message": "is required", "line": None},
        {"message": "the configuration is not valid"},
    ]
    error = ApiError(422, "invalid", "the configuration is not valid", details)
    assert str(error) == (
        "the configuration is not valid\nline 4: rate: must be above 0 (try 0.1)\nseed: is required"
    )
    assert error.message == "the configuration is not valid"


def test_errors_of_a_cluster_are_detcloud_errors() -> None:
    for kind in (ApiError, Unreachable, NoCluster):
        assert issubclass(kind, DetcloudError)
    assert str(Unreachable("no answer")) == "no answer"


def test_unwritable_download_folder_is_named(client: Client) -> None:
    with pytest.raises(DetcloudError, match=r"^/dev/null/x could not be written: "):
        download_files(client.http, [], Path("/dev/null/x"))
