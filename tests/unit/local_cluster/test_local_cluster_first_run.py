"""The output of a starting server: on a terminal, and in the log of a service."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.errors import RequestError
from control_plane.usecases.browser_sessions import create_token_by_code
from local_cluster.embedded_cluster import EmbeddedCluster, build_embedded_cluster
from local_cluster.first_run import CODE_MS, announce_start
from local_cluster.home import HomeFolder
from local_cluster.service import OpenService, ServiceSettings, open_service


@pytest.fixture
def home(tmp_path: Path) -> HomeFolder:
    return HomeFolder(tmp_path)


@pytest.fixture
def cluster(home: HomeFolder) -> Iterator[EmbeddedCluster]:
    cluster = build_embedded_cluster(home, "ada")
    yield cluster
    cluster.table.close()


@pytest.fixture
def service(home: HomeFolder) -> OpenService:
    service = open_service(home, ServiceSettings("0.0.0.0", 0, "https://lab:8470"), None)
    service.close()
    return service


def announcement(
    home: HomeFolder, cluster: EmbeddedCluster, service: OpenService, *, is_terminal: bool
) -> str:
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "isatty", lambda: is_terminal)
        patch.setattr("sys.stdout", output)
        announce_start(home, cluster, service)
    return output.getvalue()


def test_terminal_gets_a_code_once(
    home: HomeFolder, cluster: EmbeddedCluster, service: OpenService
) -> None:
    text = announcement(home, cluster, service, is_terminal=True)
    assert service.certificate is not None
    pin = service.certificate.pin
    found = re.search(rf"detcloud login https://lab:8470 --pin {pin} --code (\S+)", text)
    assert found is not None
    assert f"https://lab:8470/ui/#/sign-in/{found[1]}" in text
    assert "detcloud agent add ssh://" in text
    assert f"checkpoints are in {home.checkpoints}: give other machines this folder" in text
    services = cluster.app.state.services
    _, record = create_token_by_code(services, found[1], "")
    assert (record.user, record.role) == ("ada", "admin")
    with pytest.raises(RequestError, match="was used"):
        create_token_by_code(services, found[1], "")
    assert "--code" not in announcement(home, cluster, service, is_terminal=True)


def test_code_lasts_an_hour() -> None:
    assert CODE_MS == 60 * 60 * 1000


def test_log_of_a_service_gets_no_secret(
    home: HomeFolder, cluster: EmbeddedCluster, service: OpenService
) -> None:
    text = announcement(home, cluster, service, is_terminal=False)
    assert "dct_" not in text
    assert "detcloud server code" in text


def test_token_of_the_administrator_is_never_printed(
    home: HomeFolder, cluster: EmbeddedCluster, service: OpenService
) -> None:
    token = home.load_or_create_secret("token")
    assert token not in announcement(home, cluster, service, is_terminal=True)
