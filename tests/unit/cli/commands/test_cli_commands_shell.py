"""`detcloud shell`: refusals before a shell starts, and the file with port and token."""

from typing import Any

import pytest

from detcloud.cli.commands.shell import shell_endpoint
from detcloud.shared.errors import DetcloudError
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


def test_ssh_options_of_a_new_shell_are_refused_with_an_explanation(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    done = detcloud("shell", "start", "--", "-L", "80:x:80")
    assert done.code == 1
    assert "-L is not the name of a program" in done.err
    assert "`detcloud ssh ID` opens a shell with SSH" in done.err


def test_shell_open_refuses_a_notebook(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "mine"}, {})
    fake.experiments[0]["kind"] = "notebook"
    done = detcloud("shell", "open", "1")
    assert done.code == 1
    assert "1 is a notebook, not a shell: see `detcloud shell list`" in done.err


def test_port_and_token_are_in_the_shell_file() -> None:
    assert shell_endpoint({"port": 8888, "token": "t"}) == (8888, "t")


@pytest.mark.parametrize("fields", [{}, {"port": 0, "token": "t"}, {"port": "1", "token": "t"}])
def test_file_without_a_port_and_a_token_is_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(DetcloudError, match="no port with a token"):
        shell_endpoint(fields)


def test_files_of_another_shell_are_combined_with_no_upload(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    done = detcloud("shell", "start", "--from", "1", "--context", ".")
    assert done.code == 1
    assert "--from restores files, and cannot be combined with --context" in done.err


def test_shell_from_another_uploads_nothing(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "mine"}, {})
    fake.experiments[0]["kind"] = "shell"
    detcloud("shell", "start", "--detach", "--from", "1")
    sent = [target for method, target in fake.requests if method == "POST"]
    assert sent == ["/api/v1/experiments"]
