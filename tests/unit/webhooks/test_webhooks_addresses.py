"""The addresses that webhooks may reach."""

import ipaddress
import threading

import pytest

from control_plane.webhooks.safe_addresses import (
    AddressRule,
    Target,
    UrlRefused,
    parse_url,
    refusal_reason,
    resolve_checked,
)

NOTHING = AddressRule()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "169.254.170.2",
        "100.64.0.1",
        "100.100.100.200",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "100::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "::10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2002:c0a8:101::1",
        # Teredo with the client 10.0.0.1: its bits are inverted.
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)
def test_private_address_is_refused(address: str) -> None:
    assert refusal_reason(ipaddress.ip_address(address)) is not None
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(UrlRefused):
        parse_url(f"https://{host}/", NOTHING)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "100.63.255.255",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_public_address_is_allowed(address: str) -> None:
    assert refusal_reason(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "x.localhost",
        "127.0.0.1.",
    ],
)
def test_other_spellings_of_loopback_are_refused(host: str) -> None:
    with pytest.raises(UrlRefused):
        parse_url(f"https://{host}/", NOTHING)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://",
        "https://user:pw@example.com/",
        "https://user@example.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:x/",
        "https://[::1/",
        "https://exa mple.com/",
        "https://example.com/\r\nX: y",
        "https://exämple.com/",
        f"https://example.com/{'a' * 2_000}",
        "http://example.com/",
    ],
)
def test_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(UrlRefused):
        parse_url(url, NOTHING)


def test_url_is_split_into_its_parts() -> None:
    assert parse_url("https://Example.com/a?b=c#d", NOTHING) == Target(
        True, "example.com", 443, "/a?b=c"
    )
    assert parse_url("https://example.com:8443", NOTHING).authority == "example.com:8443"
    assert parse_url("https://[2606:4700::1111]/", NOTHING).authority == "[2606:4700::1111]"


def test_allowed_hosts_may_be_private_and_unencrypted() -> None:
    rule = AddressRule(("hooks.internal", "10.0.0.0/8", "192.168.1.5"))
    assert parse_url("http://10.9.8.7:8080/x", rule).port == 8080
    assert parse_url("http://hooks.internal/", rule).host == "hooks.internal"
    assert parse_url("http://192.168.1.5/", rule)
    for url in ("http://192.168.1.6/", "http://example.com/", "https://172.16.0.1/"):
        with pytest.raises(UrlRefused):
            parse_url(url, rule)
    target = parse_url("https://hooks.internal/", rule)
    assert resolve_checked(target, rule, 5, lambda host, port: ["172.16.0.9"]) == ("172.16.0.9",)


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::1", "fe80::1%eth0", "x"])
def test_name_with_any_private_address_is_refused(address: str) -> None:
    target = parse_url("https://example.com/", NOTHING)
    with pytest.raises(UrlRefused):
        resolve_checked(target, NOTHING, 5, lambda host, port: ["8.8.8.8", address])


def test_name_is_resolved_once() -> None:
    calls: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        calls.append(host)
        return ["8.8.8.8", "8.8.8.8"]

    target = parse_url("https://example.com/", NOTHING)
    assert resolve_checked(target, NOTHING, 5, resolve) == ("8.8.8.8",)
    assert calls == ["example.com"]


def test_resolution_ends_after_its_time() -> None:
    ended = threading.Event()
    target = parse_url("https://example.com/", NOTHING)

    def resolve(host: str, port: int) -> list[str]:
        ended.wait(10)
        return []

    with pytest.raises(OSError, match="was not resolved"):
        resolve_checked(target, NOTHING, 0.05, resolve)
    ended.set()


def test_name_without_address_is_an_error() -> None:
    target = parse_url("https://example.com/", NOTHING)
    with pytest.raises(OSError, match="has no address"):
        resolve_checked(target, NOTHING, 5, lambda host, port: [])
