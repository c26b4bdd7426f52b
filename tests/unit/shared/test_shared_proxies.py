"""The proxy of a URL by environment variables."""

import pytest

from detcloud.shared.errors import InvalidValue
from detcloud.shared.proxies import find_proxy
from detcloud.shared.proxy_addresses import (
    DIRECT_HOSTS,
    complete_proxies,
    find_exceptions_problem,
)

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
    "host",
    [
        *("localhost", "x.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "0.0.0.0", "LOCALHOST"),
        *("169.254.169.254", "169.254.170.2", "[fd00:ec2::254]", "metadata.google.internal"),
    ],
)
def test_this_machine_and_its_metadata_never_have_a_proxy(host: str) -> None:
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
    "text",
    [
        *("socks5://x:secret@h:1", "https://h:1", "http://", "http://h:99999", "http://h:port"),
        # An unescaped slash or question mark in a password.
        *("http://ada:sec/ret@h:1", "http://ada:secret?@h:1", "http://[::1:80"),
    ],
)
def test_an_unusable_proxy_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(InvalidValue, match="HTTPS_PROXY is not an address") as error:
        shown_proxy("https://c.example", HTTPS_PROXY=text)
    assert "secret" not in str(error.value)


def test_the_login_of_a_proxy_is_in_no_representation() -> None:
    proxy = find_proxy("http://c.example", {"HTTP_PROXY": "http://ada:secret@proxy:8080"})
    assert "secret" not in repr(proxy)


@pytest.mark.parametrize(
    "text",
    [
        *("", "*", ".internal.example", "*.internal.example", "a-b.example:8080", "registry"),
        *("10.0.0.0/8", "10.1.2.3", "10.1.2.3:80", "fd00::/8", "[fd00::1]:443", "a_b.example."),
        "a.example, .b.example 10.0.0.0/8",
    ],
)
def test_valid_exceptions_have_no_problem(text: str) -> None:
    assert find_exceptions_problem(text) == ""


@pytest.mark.parametrize(
    "entry",
    [
        *("http://a.example", "a.example/x", "10.0.0.0/33", "a.example:port", "a.example:99999"),
        *("a..example", "ex*mple", "10.0.0.0/8:80", "'", "."),
    ],
)
def test_invalid_exception_is_quoted(entry: str) -> None:
    problem = find_exceptions_problem(f"ok.example,{entry}")
    assert problem.startswith(f"{entry!r} is no host, .domain, address or network")


def test_an_exception_that_may_contain_a_password_is_not_quoted() -> None:
    assert "secret" not in find_exceptions_problem("ada:secret@proxy")


def test_programs_get_both_cases_and_direct_hosts() -> None:
    proxy = "http://proxy:1"
    assert complete_proxies(
        {"HTTPS_PROXY": proxy, "no_proxy": "corp.example, *.internal localhost"}
    ) == {
        **dict.fromkeys(("https_proxy", "HTTPS_PROXY"), proxy),
        **dict.fromkeys(
            ("no_proxy", "NO_PROXY"),
            ",".join(("corp.example", ".internal", "localhost", *DIRECT_HOSTS[1:])),
        ),
    }


def test_nothing_is_completed_without_a_proxy() -> None:
    assert complete_proxies({"PATH": "/bin"}) == {}
    # An exception alone is passed on, because it excepts hosts from a proxy set later.
    assert complete_proxies({"NO_PROXY": "a"}) == {"no_proxy": "a", "NO_PROXY": "a"}


def test_a_star_stays_alone() -> None:
    completed = complete_proxies({"HTTP_PROXY": "http://p:1", "NO_PROXY": "a,*"})
    assert completed["no_proxy"] == "*"


def test_a_users_variable_replaces_both_cases() -> None:
    machine = {"http_proxy": "http://m:1", "HTTP_PROXY": "http://m:1", "no_proxy": "m"}
    completed = complete_proxies(machine, {"HTTP_PROXY": "http://own:2"})
    assert completed["http_proxy"] == completed["HTTP_PROXY"] == "http://own:2"
    assert completed["NO_PROXY"].split(",")[0] == "m"
    # An empty value switches the machine's proxy off.
    assert complete_proxies(machine, {"http_proxy": ""})["HTTP_PROXY"] == ""
