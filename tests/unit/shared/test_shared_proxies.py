"""The proxy of a URL by environment variables."""

import pytest

from detcloud.shared.errors import InvalidValue
from detcloud.shared.proxies import find_proxy

BOTH = {"HTTPS_PROXY": "http://secure:3128", "HTTP_PROXY": "http://plain:3128"}


def shown_proxy(url: str, **environment: str) -> str | None:
    proxy = find_proxy(url, environment)
    return None if proxy is None else str(proxy)


def test_schemes_have_separate_proxy_variables() -> None:
    assert shown_proxy("https://cluster.example", **BOTH) == "http://secure:3128"
    assert shown_proxy("http://cluster.example", **BOTH) == "http://plain:3128"
    assert shown_proxy("http://cluster.example", HTTPS_PROXY="http://secure:3128") is None
    assert shown_proxy("https://cluster.example") is None


def test_lower_case_variables_win_even_if_empty() -> None:
    both = {**BOTH, "https_proxy": "http://small:1"}
    assert shown_proxy("https://cluster.example", **both) == "http://small:1"
    assert shown_proxy("https://cluster.example", **{**BOTH, "https_proxy": ""}) is None


def test_a_cgi_script_ignores_http_proxy_in_capitals() -> None:
    assert shown_proxy("http://cluster.example", **BOTH, REQUEST_METHOD="GET") is None
    assert shown_proxy("http://cluster.example", http_proxy="http://p:1", REQUEST_METHOD="GET")


@pytest.mark.parametrize(
    "host", ["localhost", "x.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "0.0.0.0", "LOCALHOST"]
)
def test_this_machine_never_has_a_proxy(host: str) -> None:
    assert shown_proxy(f"http://{host}:8470", **BOTH) is None
    assert shown_proxy(f"https://{host}", **BOTH) is None


@pytest.mark.parametrize(
    ("entries", "is_excepted"),
    [
        ("*", True),
        (".example", True),
        ("example", True),
        ("*.example", True),
        ("other.org, Cluster.Example", True),
        ("other.org cluster.example", True),
        ("luster.example", False),
        ("cluster", False),
        ("cluster.example:8443", True),
        ("cluster.example:443", False),
        ("", False),
        (",", False),
        (".", False),
    ],
)
def test_no_proxy_lists_names_and_domains(entries: str, is_excepted: bool) -> None:
    proxy = shown_proxy("https://cluster.example:8443", **BOTH, NO_PROXY=entries)
    assert (proxy is None) == is_excepted


@pytest.mark.parametrize(
    ("url", "entries", "is_excepted"),
    [
        ("http://10.1.2.3", "10.0.0.0/8", True),
        ("http://10.1.2.3", "10.1.2.3", True),
        ("http://10.1.2.3:80", "10.1.2.3:80", True),
        ("http://11.1.2.3", "10.0.0.0/8", False),
        ("http://[fd00::1]", "fd00::/8", True),
        ("http://[fd00::1]", "[fd00::1]", True),
        ("http://[fd00::1]", "10.0.0.0/8", False),
    ],
)
def test_no_proxy_lists_addresses_and_networks(url: str, entries: str, is_excepted: bool) -> None:
    assert (shown_proxy(url, **BOTH, no_proxy=entries) is None) == is_excepted


def test_proxy_login_becomes_a_header_and_is_not_shown() -> None:
    proxy = find_proxy("http://c.example", {"HTTP_PROXY": "http://ada:se%40cret@proxy:8080"})
    assert proxy is not None
    assert str(proxy) == "http://proxy:8080"
    # base64 of "ada:se@cret"
    assert dict(proxy.headers) == {"Proxy-Authorization": "Basic YWRhOnNlQGNyZXQ="}


def test_a_proxy_without_scheme_and_port_is_plain_http() -> None:
    assert (
        shown_proxy("https://c.example", HTTPS_PROXY="proxy.example") == "http://proxy.example:80"
    )


@pytest.mark.parametrize(
    "text", ["socks5://x:secret@h:1", "https://h:1", "http://", "http://h:99999", "http://h:port"]
)
def test_an_unusable_proxy_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(InvalidValue, match="HTTPS_PROXY is not an address") as error:
        shown_proxy("https://c.example", HTTPS_PROXY=text)
    assert "secret" not in str(error.value)
