"""`detcloud notebook`: a remote cluster is refused, and the address is read from a file."""

import json
from pathlib import Path

import pytest

from detcloud.cli.commands.notebook import read_address
from detcloud.shared.errors import DetcloudError
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


def test_a_cluster_elsewhere_is_sent_nothing(fake: FakeCluster, detcloud: Detcloud) -> None:
    done = detcloud("notebook", "start", "--no-browser")
    assert (done.code, done.out) == (1, "")
    assert f"{fake.url} is not a cluster on this machine" in done.err
    assert [request for request in fake.requests if request[0] != "GET"] == []


def test_address_is_read_from_the_notebook_file(tmp_path: Path) -> None:
    path = tmp_path / "notebook.json"
    path.write_text(json.dumps({"url": "http://127.0.0.1:8888/lab?token=t"}))
    place = {"host": "here", "port": 8888, "file": str(path)}
    assert read_address(place) == "http://127.0.0.1:8888/lab?token=t"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"url": 5}', "{" * 9999])
def test_a_file_without_an_address_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "notebook.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DetcloudError, match=r"open the notebook on that machine|no address"):
        read_address({"host": "node-1", "file": str(path)})


def test_an_address_outside_this_machine_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "notebook.json"
    path.write_text(json.dumps({"url": "http://elsewhere.example/lab"}))
    with pytest.raises(DetcloudError, match="has no address of this machine"):
        read_address({"host": "node-1", "file": str(path)})
