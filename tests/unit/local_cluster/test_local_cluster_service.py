"""The settings of a server that other machines call."""

import socket
from pathlib import Path

import pytest

from control_plane.api.request_limits import ANY_ADDRESS, is_host_allowed
from local_cluster.home import HomeFolder, HomeInvalid
from local_cluster.service import OpenService, ServiceSettings, machine_address, open_service


def open_and_close(folder: Path, settings: ServiceSettings) -> OpenService:
    service = open_service(HomeFolder(folder), settings, None)
    service.close()
    return service


def test_server_for_others_has_tls_by_default(tmp_path: Path) -> None:
    service = open_and_close(tmp_path, ServiceSettings("0.0.0.0", 0))
    assert service.public is not None
    assert service.public.context is not None
    assert service.certificate is not None
    assert service.url.startswith(f"https://{socket.gethostname()}:")


def test_own_machine_has_a_separate_socket_without_tls(tmp_path: Path) -> None:
    service = open_service(HomeFolder(tmp_path), ServiceSettings("0.0.0.0", 0), None)
    try:
        assert service.public is not None
        port = service.local.getsockname()[1]
        assert service.local_url == f"http://127.0.0.1:{port}"
        assert port != service.public.socket.getsockname()[1]
    finally:
        service.close()


def test_loopback_server_has_a_single_socket(tmp_path: Path) -> None:
    service = open_and_close(tmp_path, ServiceSettings("127.0.0.1", 0))
    assert (service.public, service.certificate) == (None, None)
    assert service.url.startswith("http://127.0.0.1:")


def test_http_for_others_must_be_requested(tmp_path: Path) -> None:
    service = open_and_close(tmp_path, ServiceSettings("0.0.0.0", 0, insecure_http=True))
    assert service.public is not None
    assert service.public.context is None
    assert service.url.startswith("http://")
    assert not (tmp_path / "server.pem").exists()


def test_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"--listen 0.0.0.0:{port} is not possible"):
            open_service(HomeFolder(tmp_path), ServiceSettings("0.0.0.0", port), None)


def test_other_loopback_addresses_are_refused_without_tls(tmp_path: Path) -> None:
    with pytest.raises(HomeInvalid, match=r"127\.0\.0\.1"):
        open_service(HomeFolder(tmp_path), ServiceSettings("::1", 0), None)


def test_failed_certificate_closes_the_socket(tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text("x")
    with socket.create_server(("127.0.0.2", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(HomeInvalid):
        open_service(HomeFolder(tmp_path), ServiceSettings("0.0.0.0", port), None)
    socket.create_server(("0.0.0.0", port)).close()


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("lab.example:8470", True),
        ("LAB.example", True),
        (socket.gethostname(), True),
        ("localhost:1", True),
        ("10.1.2.3:8470", True),
        ("[fd00::1]:8470", True),
        ("evil.example", False),
        ("lab.example.evil.example", False),
        # The entry for addresses is itself no host.
        (ANY_ADDRESS, False),
        ("1.2.3", False),
        ("", False),
    ],
)
def test_requests_may_address_the_machine(tmp_path: Path, host: str, is_allowed: bool) -> None:
    service = open_and_close(
        tmp_path, ServiceSettings("0.0.0.0", 0, url="https://lab.example:8470")
    )
    scope = {"headers": [(b"host", host.encode())]}
    assert is_host_allowed(scope, service.hosts) is is_allowed


def test_machine_address_is_an_address() -> None:
    socket.inet_aton(machine_address())
