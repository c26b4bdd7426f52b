"""Pages of other origins: which origins may call the API, and no access by session cookies."""

import pytest
from starlette.types import Receive, Scope, Send

from control_plane.access.principals import Role
from control_plane.api.page_origins import PageOrigins
from control_plane.state.table import Unavailable
from control_plane.usecases.browser_sessions import CROSS_ORIGIN_SESSION_MS
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster
from tests.unit.api.exchange import HOST, Answer, call

USER, ADMIN = TOKENS[Role.USER], TOKENS[Role.ADMIN]
PAGE = "https://page.test"
FOREIGN = ("sec-fetch-site", "cross-site")
ORIGIN = ("origin", PAGE)


def allow(cluster: Cluster, *origins: str) -> Answer:
    """Apply a configuration with page origins."""
    content = {"config": f"page_origins: {list(origins)}"}
    return call(cluster.app, "PUT", "/api/v1/cluster/configuration", token=ADMIN, content=content)


def preflight(
    cluster: Cluster, origin: str = PAGE, wanted: str = "authorization", host: str = HOST
) -> Answer:
    """Send the preflight request of a browser for GET, with `wanted` as the requested headers."""
    headers = [
        ("host", host),
        ("origin", origin),
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", wanted),
        FOREIGN,
    ]
    return call(cluster.app, "OPTIONS", "/api/v1/experiments", headers=headers)


def whoami(cluster: Cluster, *headers: tuple[str, str], token: str | None = None) -> Answer:
    return call(cluster.app, "GET", "/api/v1/whoami", headers=headers, token=token)


def open_session(cluster: Cluster, *headers: tuple[str, str]) -> Answer:
    content = {"token": USER}
    return call(cluster.app, "POST", "/api/v1/sessions", headers=headers, content=content)


def cors_headers(answer: Answer) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k.startswith("access-control-")}


def test_foreign_origins_are_refused_by_default(cluster: Cluster) -> None:
    refused = preflight(cluster)
    assert (refused.status, refused.code, cors_headers(refused)) == (403, "forbidden", {})
    assert "page_origins" in refused.json["error"]["message"]
    assert cors_headers(whoami(cluster, ORIGIN, FOREIGN, token=USER)) == {}


def test_configured_origin_may_send_requests_with_a_token(cluster: Cluster) -> None:
    assert allow(cluster, PAGE).status == 200
    preflighted = preflight(cluster)
    assert (preflighted.status, preflighted.body) == (204, b"")
    assert preflighted.headers["access-control-allow-origin"] == PAGE
    assert "Authorization" in preflighted.headers["access-control-allow-headers"]
    assert "PATCH" in preflighted.headers["access-control-allow-methods"]
    answer = whoami(cluster, ORIGIN, FOREIGN, token=USER)
    assert (answer.json["user"], answer.headers["access-control-allow-origin"]) == ("user-1", PAGE)
    assert answer.headers["vary"] == "Origin"


def test_configured_origin_may_read_errors(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    for token, status in ((None, 401), (TOKENS[Role.AGENT], 403)):
        answer = call(cluster.app, "GET", "/api/v1/experiments", headers=[ORIGIN], token=token)
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == PAGE


def test_cors_headers_allow_no_cookies_and_no_wildcard(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    for answer in (preflight(cluster), whoami(cluster, ORIGIN, token=USER)):
        assert "access-control-allow-credentials" not in answer.headers
        assert "*" not in str(cors_headers(answer))
    allowed = preflight(cluster, wanted="x-session-key").headers["access-control-allow-headers"]
    assert "session" not in allowed.lower()


@pytest.mark.parametrize(
    "origin",
    [
        "https://page.test.evil.test",
        "https://evil-page.test",
        "https://page.test:8443",
        "http://page.test",
        "https://PAGE.test",
        "https://page.test/",
        "null",
        "",
        "*",
        f"{PAGE}, https://evil.test",
    ],
)
def test_similar_origin_is_not_allowed(cluster: Cluster, origin: str) -> None:
    allow(cluster, PAGE)
    assert preflight(cluster, origin).status == 403
    answer = whoami(cluster, ("origin", origin), token=USER)
    assert (answer.status, cors_headers(answer)) == (200, {})


def test_request_with_two_origins_is_not_allowed(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    assert cors_headers(whoami(cluster, ORIGIN, ORIGIN, token=USER)) == {}


def test_unknown_host_refuses_preflights(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    refused = preflight(cluster, host="attacker.test")
    assert (refused.status, cors_headers(refused)) == (403, {})


def test_removed_origin_is_refused_at_once(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    allow(cluster)
    assert preflight(cluster).status == 403
    assert cors_headers(whoami(cluster, ORIGIN, token=USER)) == {}


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ("*", "must be an origin"),
        ("null", "must be an origin"),
        ("https://page.test/", "must be an origin"),
        ("https://page.test/ui", "must be an origin"),
        ("https://*.page.test", "must be an origin"),
        ("https://me:secret@page.test", "must be an origin"),
        ("https://Page.test", "must be an origin"),
        ("https://page.test:443", "must leave :443 out"),
        ("https://page.test:99999", "must have a port up to 65535"),
        ("http://page.test", "must begin with https://"),
        ("http://127.0.0.1.evil.test", "must begin with https://"),
        ("https://storage.googleapis.com", "every bucket of everybody"),
        ("https://s3.amazonaws.com", "every bucket of everybody"),
        ("https://s3.eu-west-1.amazonaws.com", "every bucket of everybody"),
        ("https://s3-website.eu-west-1.amazonaws.com", "every bucket of everybody"),
        ("file:///page", "must be an origin"),
    ],
)
def test_rejects_invalid_page_origins(cluster: Cluster, origin: str, message: str) -> None:
    refused = allow(cluster, origin)
    assert refused.status == 422
    [detail] = refused.json["error"]["details"]
    assert message in detail["message"]


@pytest.mark.parametrize(
    "origin",
    [
        "https://page.test",
        "https://page.test:8443",
        "https://team.s3.amazonaws.com",
        "http://127.0.0.1:8000",
        "http://[::1]:8000",
    ],
)
def test_accepts_origins_as_browsers_write_them(cluster: Cluster, origin: str) -> None:
    assert allow(cluster, origin).status == 200


def test_foreign_page_signs_in_without_a_cookie(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    opened = open_session(cluster, ORIGIN, FOREIGN)
    assert (opened.status, "set-cookie" in opened.headers) == (201, False)
    assert opened.json["expires_ms"] == NOW_MS + CROSS_ORIGIN_SESSION_MS
    token = opened.json["key"]
    assert whoami(cluster, ORIGIN, FOREIGN, token=token).json["user"] == "user-1"
    cluster.clock.ms += CROSS_ORIGIN_SESSION_MS
    assert whoami(cluster, ORIGIN, FOREIGN, token=token).status == 401


def test_foreign_page_signs_in_by_code_and_signs_out(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    code = call(cluster.app, "POST", "/api/v1/sign-in-codes", token=USER).json["code"]
    content, headers = {"code": code}, [ORIGIN, FOREIGN]
    opened = call(cluster.app, "POST", "/api/v1/sessions", headers=headers, content=content)
    token = opened.json["key"]
    current = "/api/v1/sessions/current"
    assert call(cluster.app, "DELETE", current, headers=headers, token=token).status == 204
    assert whoami(cluster, *headers, token=token).status == 401
    # A token can open a session, but is no session that could be ended.
    assert call(cluster.app, "DELETE", current, headers=headers, token=USER).status == 404


def test_unknown_foreign_pages_cannot_sign_in(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    for site in ("cross-site", "same-site"):
        headers = [("origin", "https://evil.test"), ("sec-fetch-site", site)]
        refused = open_session(cluster, *headers)
        assert (refused.status, refused.code) == (403, "forbidden")
        assert "set-cookie" not in refused.headers


def test_session_of_the_own_page_is_refused_from_foreign_pages(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    opened = open_session(cluster, ("origin", f"https://{HOST}"), ("sec-fetch-site", "same-origin"))
    cookie = opened.headers["set-cookie"].split(";", 1)[0]
    both = [("cookie", cookie), ("x-session-key", opened.json["key"])]
    assert whoami(cluster, *both, ("sec-fetch-site", "same-origin")).status == 200
    for site in ("cross-site", "same-site"):
        elsewhere = whoami(cluster, *both, ORIGIN, ("sec-fetch-site", site))
        assert (elsewhere.status, elsewhere.code) == (401, "unauthenticated")
        assert whoami(cluster, *both, ("sec-fetch-site", site)).status == 401
    # Without Sec-Fetch-Site, the Origin header suffices.
    assert whoami(cluster, *both, ORIGIN).status == 401


def test_foreign_page_gets_unavailable_without_the_table() -> None:
    def read_allowed() -> frozenset[str]:
        raise Unavailable("throttled")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the request reached the application")

    refused = call(PageOrigins(answer, read_allowed), "GET", "/api/v1/health", headers=[ORIGIN])
    assert (refused.status, refused.code) == (503, "unavailable")
