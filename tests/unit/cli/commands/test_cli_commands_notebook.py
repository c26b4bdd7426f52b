"""`detcloud notebook`: the address in the file that the notebook has written."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from detcloud.cli.commands.notebook import notebook_address
from detcloud.cli.commands.places import read_location
from detcloud.client import Client
from detcloud.client.home import Home, ServerRecord
from detcloud.shared.errors import DetcloudError

URL = "http://127.0.0.1:8888/lab?token=t"


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of the local cluster."""
    record = ServerRecord("http://127.0.0.1:7070", 1, 1, "1.0")
    monkeypatch.setattr(Home, "running_server", lambda home: record)
    return cast(Client, SimpleNamespace(url=record.url))


def test_file_is_read_on_the_local_cluster_only(tmp_path: Path, local: Client) -> None:
    path = tmp_path / "notebook.json"
    path.write_text(json.dumps({"url": URL}))
    place = {"host": "here", "port": 8888, "file": str(path)}
    assert read_location(local, place) == {"url": URL}
    # The path of another cluster may name a file of this machine.
    remote = cast(Client, SimpleNamespace(url="https://cluster.example"))
    assert read_location(remote, place) is None


@pytest.mark.parametrize("content", [None, "", "[]", "{" * 9999])
def test_unreadable_file_needs_a_tunnel(tmp_path: Path, local: Client, content: str | None) -> None:
    path = tmp_path / "notebook.json"
    if content is not None:
        path.write_text(content)
    assert read_location(local, {"file": str(path)}) is None
    assert read_location(local, {}) is None


def test_address_leads_to_the_port_of_this_machine() -> None:
    assert notebook_address({"url": URL}) == URL
    assert notebook_address({"url": URL}, 9000) == "http://127.0.0.1:9000/lab?token=t"


@pytest.mark.parametrize(
    "url",
    [
        None,
        5,
        "http://elsewhere.example/lab",
        "http://127.0.0.1:8888",
        # A browser would send the token to evil.example.
        "http://127.0.0.1:8888@evil.example/lab",
        "http://127.0.0.1:8888/lab\n",
    ],
)
def test_address_elsewhere_is_not_opened(url: Any) -> None:
    with pytest.raises(DetcloudError, match=r"has no address on 127\.0\.0\.1"):
        notebook_address({"url": url})
