"""Pages of other origins: which may ask the API, and that no session of ours helps them."""

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
    """Put a configuration in force that names these origins."""
    content = {"config": f"page_origins: {list(origins)}"}
    return call(cluster.app, "PUT", "/api/v1/cluster/configuration", token=ADMIN, content=content)


def preflight(
    cluster: Cluster, origin: str = PAGE, wanted: str = "authorization", host: str = HOST
) -> Answer:
    """The question of a browser before a request that a page could not send by a form."""
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


def test_no_page_elsewhere_may_ask_before_one_is_named(cluster: Cluster) -> None:
    refused = preflight(cluster)
    assert (refused.status, refused.code, cors_headers(refused)) == (403, "forbidden", {})
    assert "page_origins" in refused.json["error"]["message"]
    assert cors_headers(whoami(cluster, ORIGIN, FOREIGN, token=USER)) == {}


def test_a_page_that_is_named_may_ask_with_a_token(cluster: Cluster) -> None:
    assert allow(cluster, PAGE).status == 200
    asked = preflight(cluster)
    assert (asked.status, asked.body) == (204, b"")
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "Authorization" in asked.headers["access-control-allow-headers"]
    assert "PATCH" in asked.headers["access-control-allow-methods"]
    answer = whoami(cluster, ORIGIN, FOREIGN, token=USER)
    assert (answer.json["user"], answer.headers["access-control-allow-origin"]) == ("user-1", PAGE)
    assert answer.headers["vary"] == "Origin"


def test_it_reads_errors_too(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    for token, status in ((None, 401), (TOKENS[Role.AGENT], 403)):
        answer = call(cluster.app, "GET", "/api/v1/experiments", headers=[ORIGIN], token=token)
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == PAGE


def test_nothing_tells_a_browser_to_send_cookies_or_to_let_everybody_ask(cluster: Cluster) -> None:
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
def test_an_origin_that_is_like_it_is_another(cluster: Cluster, origin: str) -> None:
    allow(cluster, PAGE)
    assert preflight(cluster, origin).status == 403
    answer = whoami(cluster, ("origin", origin), token=USER)
    assert (answer.status, cors_headers(answer)) == (200, {})


def test_two_origins_are_none(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    assert cors_headers(whoami(cluster, ORIGIN, ORIGIN, token=USER)) == {}


def test_another_host_answers_no_page(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    refused = preflight(cluster, host="attacker.test")
    assert (refused.status, cors_headers(refused)) == (403, {})


def test_a_page_that_is_named_no_more_is_refused_at_once(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    allow(cluster)
    assert preflight(cluster).status == 403
    assert cors_headers(whoami(cluster, ORIGIN, token=USER)) == {}


@pytest.mark.parametrize(
    ("origin", "told"),
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
def test_an_origin_that_cannot_be_allowed_is_refused(
    cluster: Cluster, origin: str, told: str
) -> None:
    refused = allow(cluster, origin)
    assert refused.status == 422
    [detail] = refused.json["error"]["details"]
    assert told in detail["message"]


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
def test_origins_as_browsers_write_them_are_allowed(cluster: Cluster, origin: str) -> None:
    assert allow(cluster, origin).status == 200


def test_a_page_elsewhere_signs_in_for_a_token_and_gets_no_cookie(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    opened = open_session(cluster, ORIGIN, FOREIGN)
    assert (opened.status, "set-cookie" in opened.headers) == (201, False)
    assert opened.json["expires_ms"] == NOW_MS + CROSS_ORIGIN_SESSION_MS
    token = opened.json["key"]
    assert whoami(cluster, ORIGIN, FOREIGN, token=token).json["user"] == "user-1"
    cluster.clock.ms += CROSS_ORIGIN_SESSION_MS
    assert whoami(cluster, ORIGIN, FOREIGN, token=token).status == 401


def test_a_page_elsewhere_signs_in_by_a_code_and_out(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    code = call(cluster.app, "POST", "/api/v1/sign-in-codes", token=USER).json["code"]
    content, headers = {"code": code}, [ORIGIN, FOREIGN]
    opened = call(cluster.app, "POST", "/api/v1/sessions", headers=headers, content=content)
    token = opened.json["key"]
    current = "/api/v1/sessions/current"
    assert call(cluster.app, "DELETE", current, headers=headers, token=token).status == 204
    assert whoami(cluster, *headers, token=token).status == 401
    # A token that opens sessions is none itself.
    assert call(cluster.app, "DELETE", current, headers=headers, token=USER).status == 404


def test_no_other_page_elsewhere_signs_in(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    for site in ("cross-site", "same-site"):
        headers = [("origin", "https://evil.test"), ("sec-fetch-site", site)]
        refused = open_session(cluster, *headers)
        assert (refused.status, refused.code) == (403, "forbidden")
        assert "set-cookie" not in refused.headers


def test_a_session_of_the_own_page_is_of_no_use_to_a_page_elsewhere(cluster: Cluster) -> None:
    allow(cluster, PAGE)
    opened = open_session(cluster, ("origin", f"https://{HOST}"), ("sec-fetch-site", "same-origin"))
    cookie = opened.headers["set-cookie"].split(";", 1)[0]
    both = [("cookie", cookie), ("x-session-key", opened.json["key"])]
    assert whoami(cluster, *both, ("sec-fetch-site", "same-origin")).status == 200
    for site in ("cross-site", "same-site"):
        elsewhere = whoami(cluster, *both, ORIGIN, ("sec-fetch-site", site))
        assert (elsewhere.status, elsewhere.code) == (401, "unauthenticated")
        assert whoami(cluster, *both, ("sec-fetch-site", site)).status == 401
    # Of a browser that says nothing of sites, the origin is enough.
    assert whoami(cluster, *both, ORIGIN).status == 401


def test_a_page_elsewhere_is_told_to_try_again_while_the_table_is_away() -> None:
    def read_allowed() -> frozenset[str]:
        raise Unavailable("throttled")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nobody knows whether it may")

    refused = call(PageOrigins(answer, read_allowed), "GET", "/api/v1/health", headers=[ORIGIN])
    assert (refused.status, refused.code) == (503, "unavailable")
