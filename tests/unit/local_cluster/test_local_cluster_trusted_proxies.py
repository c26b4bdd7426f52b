"""Requests through reverse proxies, and forged headers of other clients."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from control_plane.access.principals import Role
from control_plane.api.sign_in_limits import ADDRESS_REFUSALS_MAX
from local_cluster.trusted_proxies import TrustedProxies, parse_network, parse_prefix
from tests.unit.api.cluster import TOKENS, Cluster, build_cluster
from tests.unit.api.exchange import HOST, Answer, exchange

PROXIES = [parse_network("10.0.0.0/24"), parse_network("fd00::1")]
PROXY, CALLER, STRANGER = "10.0.0.7", "198.51.100.9", "203.0.113.1"
Headers = Sequence[tuple[str, str]]


class Recorder:
    """An application that records the scope of each request."""

    def __init__(self) -> None:
        self.scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def restore_request(peer: str, headers: Headers, path: str = "/x", prefix: str = "") -> Scope:
    """Return the scope that the application gets for a request of `peer`."""
    recorder = Recorder()
    app = TrustedProxies(recorder, PROXIES, prefix)
    asyncio.run(exchange(app, "GET", path, [("host", HOST), *headers], client=(peer, 5000)))
    return recorder.scope


def host(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"host"]


@pytest.mark.parametrize(
    ("forwarded", "caller"),
    [
        (CALLER, CALLER),
        (f"1.1.1.1, {CALLER}", CALLER),
        (f"{CALLER}, 10.0.0.8", CALLER),
        (f"1.1.1.1,{CALLER}, 10.0.0.8 ,10.0.0.9", CALLER),
        ("2001:db8::5", "2001:db8::5"),
        ("[2001:db8::5]:4711", "2001:db8::5"),
        (f"{CALLER}:4711", CALLER),
        # Without an address of a caller, the proxy itself is the client.
        ("10.0.0.8", PROXY),
        ("unknown", PROXY),
        ("1.1.1.1, _hidden", PROXY),
        ("", PROXY),
    ],
)
def test_proxy_names_the_caller(forwarded: str, caller: str) -> None:
    assert restore_request(PROXY, [("x-forwarded-for", forwarded)])["client"][0] == caller


def test_repeated_headers_count_as_a_list() -> None:
    headers = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", CALLER)]
    assert restore_request(PROXY, headers)["client"][0] == CALLER


@pytest.mark.parametrize("peer", [PROXY, "fd00::1", "::ffff:10.0.0.7"])
def test_proxy_names_protocol_and_host(peer: str) -> None:
    headers = [("x-forwarded-proto", "https"), ("x-forwarded-host", "lab.example")]
    scope = restore_request(peer, headers)
    assert scope["scheme"] == "https"
    assert host(scope) == [b"lab.example"]


@pytest.mark.parametrize("peer", [STRANGER, "fd00::2", "127.0.0.1", "::1", ""])
def test_headers_of_other_clients_are_ignored(peer: str) -> None:
    headers = [
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-prefix", "/evil"),
    ]
    scope = restore_request(peer, headers, "/evil/x")
    assert (scope["client"][0], scope["scheme"], scope["path"]) == (peer, "http", "/evil/x")
    assert host(scope) == [HOST.encode()]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-forwarded-proto", "gopher"),
        ("x-forwarded-host", "evil example/"),
        ("x-forwarded-host", ""),
        ("x-forwarded-prefix", "//evil.example"),
        ("x-forwarded-prefix", "/a b"),
        ("x-forwarded-prefix", "evil"),
    ],
)
def test_invalid_values_of_a_proxy_are_ignored(name: str, value: str) -> None:
    scope = restore_request(PROXY, [(name, value)])
    assert (scope["scheme"], host(scope)) == ("http", [HOST.encode()])
    assert scope["state"]["path_prefix"] == ""


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/lab/api/v1/health", "/api/v1/health"),
        ("/api/v1/health", "/api/v1/health"),
        ("/lab", "/"),
        ("/lab/", "/"),
        ("/laboratory", "/laboratory"),
        ("/lab/lab/x", "/lab/x"),
    ],
)
def test_proxy_may_keep_or_remove_the_prefix(path: str, seen: str) -> None:
    scope = restore_request(STRANGER, [], path, prefix="/lab")
    assert (scope["path"], scope["raw_path"]) == (seen, seen.encode())
    assert scope["state"]["path_prefix"] == "/lab"
    named = restore_request(PROXY, [("x-forwarded-prefix", "/lab/")], path)
    assert (named["path"], named["state"]["path_prefix"]) == (seen, "/lab")


@pytest.mark.parametrize("text", ["/ui", "/api/x", "lab", "/a b", "//x", "/a/../b?x"])
def test_impossible_prefix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        parse_prefix(text)


def test_prefix_has_no_slash_at_the_end() -> None:
    assert [parse_prefix(text) for text in ("", "/", "/lab/", "/a/b")] == ["", "", "/lab", "/a/b"]


@pytest.mark.parametrize(
    ("peer", "status"), [(PROXY, 200), ("127.0.0.1", 200), (STRANGER, 403), ("", 403)]
)
def test_plain_server_answers_only_its_proxies(peer: str, status: int) -> None:
    app = TrustedProxies(Recorder(), PROXIES, only_proxies=True)
    answer = asyncio.run(exchange(app, "GET", "/x", [("host", HOST)], client=(peer, 1)))
    assert answer.status == status


def sign_in(app: Any, peer: str, forwarded: str, token: str = "wrong") -> Answer:
    headers = [
        ("host", HOST),
        ("content-type", "application/json"),
        ("x-forwarded-for", forwarded),
        ("x-forwarded-proto", "https"),
    ]
    body = [f'{{"token": "{token}"}}'.encode()]
    return asyncio.run(
        exchange(app, "POST", "/api/v1/sessions", headers, body, client=(peer, 5000))
    )


@pytest.fixture
def cluster(tmp_path: Any) -> Cluster:
    return build_cluster(tmp_path)


def test_forged_addresses_do_not_evade_the_limit_of_sign_ins(cluster: Cluster) -> None:
    app = TrustedProxies(cluster.app, PROXIES)
    statuses = [
        sign_in(app, STRANGER, f"1.1.1.{number}").status
        for number in range(ADDRESS_REFUSALS_MAX + 1)
    ]
    assert statuses == [401] * ADDRESS_REFUSALS_MAX + [429]
    # Callers behind the proxy are counted one by one, whatever they claim.
    statuses = [
        sign_in(app, PROXY, f"1.1.1.{number}, {CALLER}").status
        for number in range(ADDRESS_REFUSALS_MAX + 1)
    ]
    assert statuses == [401] * ADDRESS_REFUSALS_MAX + [429]
    assert sign_in(app, PROXY, "198.51.100.10").status == 401


def test_cookie_behind_a_prefix_is_of_the_prefix_alone(cluster: Cluster) -> None:
    app = TrustedProxies(cluster.app, PROXIES, "/lab")
    opened = sign_in(app, PROXY, CALLER, TOKENS[Role.USER])
    assert opened.status == 201
    name, *attributes = opened.headers["set-cookie"].split("; ")
    assert name.startswith("__Secure-detcloud-")
    assert "Path=/lab/" in attributes
    assert "Secure" in attributes


def test_root_leads_to_the_page_below_the_prefix(cluster: Cluster) -> None:
    app = TrustedProxies(cluster.app, PROXIES, "/lab")
    for path in ("/lab/", "/", "/lab/ui"):
        answer = asyncio.run(exchange(app, "GET", path, [("host", HOST)]))
        assert (answer.status, answer.headers["location"]) == (307, "/lab/ui/")
