"""`detcloud shell`: refusals before a shell starts, and the file with port and token."""

import json
from pathlib import Path

import pytest

from detcloud.cli.commands.shell import read_endpoint
from detcloud.shared.errors import DetcloudError
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


def test_a_cluster_elsewhere_is_sent_nothing(fake: FakeCluster, detcloud: Detcloud) -> None:
    done = detcloud("shell", "start")
    assert (done.code, done.out) == (1, "")
    assert "start the shell on a local cluster (`detcloud up`)" in done.err
    assert [request for request in fake.requests if request[0] != "GET"] == []


@pytest.mark.parametrize("words", [("start", "--", "-L", "80:x:80"), ("open", "1", "--", "-A")])
def test_ssh_options_are_refused_with_an_explanation(
    fake: FakeCluster, detcloud: Detcloud, words: tuple[str, ...]
) -> None:
    fake.add_experiment({"name": "mine"}, {})
    fake.experiments[0]["kind"] = "shell"
    done = detcloud("shell", *words)
    assert done.code == 1
    assert f"{words[-1] if words[0] == 'open' else '-L'} is not the name of a program" in done.err
    assert "a shell is opened without SSH" in done.err


def test_shell_open_refuses_a_notebook(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "mine"}, {})
    fake.experiments[0]["kind"] = "notebook"
    done = detcloud("shell", "open", "1")
    assert done.code == 1
    assert "1 is a notebook, not a shell: see `detcloud shell list`" in done.err


def test_port_and_token_are_read_from_the_shell_file(tmp_path: Path) -> None:
    path = tmp_path / "shell.json"
    path.write_text(json.dumps({"port": 8888, "token": "t"}))
    assert read_endpoint({"host": "here", "port": 8888, "file": str(path)}) == (8888, "t")


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"port": 0, "token": "t"}', '{"port": "1", "token": "t"}']
)
def test_a_file_without_a_port_and_a_token_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "shell.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(
        DetcloudError, match=r"open the shell on that machine|no port of this machine"
    ):
        read_endpoint({"host": "node-1", "file": str(path)})
