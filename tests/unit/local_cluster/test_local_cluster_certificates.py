"""Certificates of a server that other machines call."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from detcloud.shared.pinned_connections import unverified_context
from detcloud.shared.pins import certificate_pin
from local_cluster.certificates import (
    SELF_SIGNED_FILE,
    ServedCertificate,
    load_or_create_certificate,
    machine_names,
    make_certificate,
    read_pin,
)
from local_cluster.home import HomeFolder, HomeInvalid

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def write_pair(path: Path) -> Path:
    path.write_text(make_certificate(["lab"], datetime.now(UTC)))
    return path


def split_pair(pair: Path, folder: Path) -> tuple[Path, Path]:
    """Write the certificate and the key of a pair to separate files."""
    key, begin, certificate = pair.read_text().partition("-----BEGIN CERTIFICATE-----")
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_text(begin + certificate)
    paths[1].write_text(key)
    return paths


async def served_pins(
    served: ServedCertificate, changes: list[object], name: str | None
) -> list[str]:
    """Return the pin that a new connection sees before and after each change."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0, ssl=served.context)
    port = server.sockets[0].getsockname()[1]
    pins = []
    for change in [lambda: None, *changes]:
        assert callable(change)
        change()
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=unverified_context(), server_hostname=name or "127.0.0.1"
        )
        connection = writer.get_extra_info("ssl_object")
        pins.append(certificate_pin(connection.getpeercert(binary_form=True)))
        writer.transport.abort()
    server.close()
    return pins


def test_self_signed_certificate_names_hosts_and_addresses() -> None:
    pem = make_certificate(["lab", "10.0.0.1", "::1"], NOW)
    certificate = x509.load_pem_x509_certificate(pem[pem.index("-----BEGIN CERT") :].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["lab"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.1", "::1"]
    # A client whose clock is a day behind accepts the certificate.
    assert certificate.not_valid_before_utc == NOW - timedelta(days=1)
    assert certificate.not_valid_after_utc == NOW + timedelta(days=3650)


def test_self_signed_certificate_stays(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    first = load_or_create_certificate(home, ["lab"]).pin
    assert load_or_create_certificate(home, ["other"]).pin == first
    assert (tmp_path / SELF_SIGNED_FILE).stat().st_mode & 0o777 == 0o600


def test_damaged_certificate_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / SELF_SIGNED_FILE).write_text("x")
    with pytest.raises(HomeInvalid, match=SELF_SIGNED_FILE):
        load_or_create_certificate(HomeFolder(tmp_path), ["lab"])
    assert (tmp_path / SELF_SIGNED_FILE).read_text() == "x"


@pytest.mark.parametrize("name", ["lab", None])
def test_new_connections_get_a_changed_certificate(tmp_path: Path, name: str | None) -> None:
    # A client that dials an IP address sends no name.
    path, new = write_pair(tmp_path / "a.pem"), write_pair(tmp_path / "b.pem")
    first, second = read_pin(path), read_pin(new)
    served = ServedCertificate(path, path)
    assert asyncio.run(served_pins(served, [lambda: new.replace(path)], name)) == [first, second]


def test_former_certificate_stays_until_both_files_fit(tmp_path: Path) -> None:
    certificate, key = split_pair(write_pair(tmp_path / "a.pem"), tmp_path)
    (tmp_path / "new").mkdir()
    new_certificate, new_key = split_pair(write_pair(tmp_path / "b.pem"), tmp_path / "new")
    first, second = read_pin(certificate), read_pin(new_certificate)
    served = ServedCertificate(certificate, key)
    changes: list[object] = [
        lambda: new_certificate.replace(certificate),
        lambda: new_key.replace(key),
        key.unlink,
    ]
    # The new certificate does not fit to the old key, and the missing key changes nothing.
    assert asyncio.run(served_pins(served, changes, "lab")) == [first, first, second, second]


def test_open_connection_survives_a_change(tmp_path: Path) -> None:
    path, new = write_pair(tmp_path / "a.pem"), write_pair(tmp_path / "b.pem")
    served = ServedCertificate(path, path)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async def exchange() -> list[bytes]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=served.context)
        port = server.sockets[0].getsockname()[1]
        lines = []
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=unverified_context(), server_hostname="lab"
        )
        for _ in range(2):
            writer.write(b"hello\n")
            lines.append(await reader.readline())
            new.rename(path) if new.exists() else None
        writer.close()
        server.close()
        return lines

    assert asyncio.run(exchange()) == [b"hello\n", b"hello\n"]


@pytest.mark.parametrize("content", [None, "", "x"])
def test_unusable_files_are_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(HomeInvalid, match=r"cert\.pem.*--tls-cert"):
        ServedCertificate(path, path)


def test_pin_of_a_file_without_certificate_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("x")
    with pytest.raises(HomeInvalid, match=r"x\.pem contains no certificate"):
        read_pin(tmp_path / "x.pem")


def test_names_leave_out_the_unspecified_address() -> None:
    names = machine_names("0.0.0.0", "Lab.example")
    assert names[0] == "lab.example"
    assert "0.0.0.0" not in names
    assert "10.0.0.9" in machine_names("10.0.0.9", "lab")


def test_context_requires_a_modern_protocol(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "a.pem")
    assert ServedCertificate(path, path).context.minimum_version >= ssl.TLSVersion.TLSv1_2
