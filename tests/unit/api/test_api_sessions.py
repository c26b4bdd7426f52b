"""Sessions of browsers: sign-in, use, expiry, and limits of guesses."""

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.api.sign_in_limits import (
    ADDRESS_REFUSALS_MAX,
    TOTAL_REFUSALS_MAX,
    WINDOW_SECONDS,
    SignInLimits,
)
from control_plane.errors import RequestError
from control_plane.state.sqlite import SqliteTable
from control_plane.usecases.browser_sessions import CODE_MS, SESSION_MS
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster, build_cluster
from tests.unit.api.exchange import HOST, Answer, call, exchange
from tests.unit.api.table_decorators import RecordedTable

USER = TOKENS[Role.USER]
LOOPBACK = ("host", "127.0.0.1:4000")


def new_code(cluster: Cluster, token: str = USER) -> str:
    """Create a sign-in code with a token."""
    answer = call(cluster.app, "POST", "/api/v1/sign-in-codes", token=token)
    assert answer.status == 201
    return str(answer.json["code"])


def open_session(
    cluster: Cluster, content: object, headers: list[tuple[str, str]] | None = None
) -> Answer:
    return call(cluster.app, "POST", "/api/v1/sessions", headers=headers or [], content=content)


def halves(answer: Answer) -> list[tuple[str, str]]:
    """Return the request headers with cookie and key of the opened session."""
    assert answer.status == 201
    cookie = answer.headers["set-cookie"].split(";", 1)[0]
    return [("cookie", cookie), ("x-session-key", answer.json["key"])]


def whoami(cluster: Cluster, headers: list[tuple[str, str]]) -> Answer:
    return call(cluster.app, "GET", "/api/v1/whoami", headers=headers)


def cookie_attributes(answer: Answer) -> Mapping[str, str]:
    """Return the attributes of the answer's cookie by lower-case name; `name` is the cookie's."""
    first, *rest = answer.headers["set-cookie"].split("; ")
    pairs = (part.partition("=") for part in rest)
    return {"name": first.partition("=")[0]} | {name.lower(): value for name, _, value in pairs}


def test_sign_in_code_opens_a_session_of_the_creator(cluster: Cluster) -> None:
    made = call(cluster.app, "POST", "/api/v1/sign-in-codes", token=USER).json
    assert made["path"] == f"/ui/#/sign-in/{made['code']}"
    assert made["expires_ms"] == NOW_MS + CODE_MS
    opened = open_session(cluster, {"code": made["code"]})
    assert (opened.json["user"], opened.json["role"]) == ("user-1", "user")
    assert opened.json["expires_ms"] == NOW_MS + SESSION_MS
    assert whoami(cluster, halves(opened)).json == {"user": "user-1", "role": "user"}


def test_sign_in_code_is_valid_once(cluster: Cluster) -> None:
    code = new_code(cluster)
    assert open_session(cluster, {"code": code}).status == 201
    again = open_session(cluster, {"code": code})
    assert (again.status, again.code) == (401, "unauthenticated")
    assert "`detcloud open`" in again.json["error"]["message"]


def test_sign_in_code_expires_after_five_minutes(cluster: Cluster) -> None:
    code = new_code(cluster)
    cluster.clock.ms += 5 * 60 * 1000
    assert open_session(cluster, {"code": code}).status == 401


def test_sign_in_code_is_no_token(cluster: Cluster) -> None:
    code = new_code(cluster)
    assert call(cluster.app, "GET", "/api/v1/whoami", token=code).status == 401
    assert open_session(cluster, {"token": code}).status == 401


def test_session_ends_with_the_opening_token(cluster: Cluster) -> None:
    made = cluster.post("/tokens", {"description": "mine", "expires_days": 1}).json
    opened = open_session(cluster, {"token": made["token"]})
    # A day, the token's life, is less than a session's week.
    assert opened.json["expires_ms"] == NOW_MS + 24 * 3600 * 1000
    assert whoami(cluster, halves(opened)).status == 200
    call(cluster.app, "DELETE", f"/api/v1/tokens/{made['id']}", token=USER)
    assert whoami(cluster, halves(opened)).status == 401


def test_sign_in_code_ends_with_the_token_of_the_creator(cluster: Cluster) -> None:
    made = cluster.post("/tokens", {"description": "mine"}).json
    code = new_code(cluster, made["token"])
    call(cluster.app, "DELETE", f"/api/v1/tokens/{made['id']}", token=USER)
    assert open_session(cluster, {"code": code}).status == 401


@pytest.mark.parametrize("role", [Role.AGENT, Role.JOIN])
def test_agent_and_join_tokens_open_no_session(cluster: Cluster, role: Role) -> None:
    assert open_session(cluster, {"token": TOKENS[role]}).code == "forbidden"


@pytest.mark.parametrize("content", [{}, {"code": "a", "token": "b"}, {"code": ""}, {"key": "a"}])
def test_malformed_request_opens_no_session(cluster: Cluster, content: object) -> None:
    assert open_session(cluster, content).code == "invalid"


def test_form_of_a_foreign_site_opens_no_session(cluster: Cluster) -> None:
    # A form cannot send the content type of JSON.
    body = f'{{"code": "{new_code(cluster)}"}}'.encode()
    plain = [("content-type", "text/plain")]
    assert call(cluster.app, "POST", "/api/v1/sessions", headers=plain, body=body).code == "invalid"


@pytest.mark.parametrize("missing", ["cookie", "x-session-key"])
def test_session_needs_cookie_and_key(cluster: Cluster, missing: str) -> None:
    both = halves(open_session(cluster, {"code": new_code(cluster)}))
    half = [(name, value) for name, value in both if name != missing]
    assert whoami(cluster, half).status == 401
    # A page of a foreign site has the cookie alone, which must not change anything either.
    answer = call(cluster.app, "POST", "/api/v1/sign-in-codes", headers=half)
    assert (answer.status, answer.code) == (401, "unauthenticated")


def test_halves_of_two_sessions_do_not_authenticate(cluster: Cluster) -> None:
    [cookie, _], [_, key] = (
        halves(open_session(cluster, {"code": new_code(cluster)})) for _ in range(2)
    )
    assert whoami(cluster, [cookie, key]).status == 401


def test_session_makes_tokens_that_end_with_the_session(cluster: Cluster) -> None:
    both = halves(open_session(cluster, {"code": new_code(cluster)}))
    made = call(
        cluster.app, "POST", "/api/v1/tokens", headers=both, content={"description": "by the page"}
    )
    assert made.status == 201
    # The session limits the life of tokens that the session creates.
    assert made.json["expires_ms"] == NOW_MS + SESSION_MS
    call(cluster.app, "DELETE", "/api/v1/sessions/current", headers=both)
    assert call(cluster.app, "GET", "/api/v1/whoami", token=made.json["token"]).status == 401


def test_signing_out_ends_the_session_and_the_cookie(cluster: Cluster) -> None:
    both = halves(open_session(cluster, {"code": new_code(cluster)}))
    ended = call(cluster.app, "DELETE", "/api/v1/sessions/current", headers=both)
    assert ended.status == 204
    assert cookie_attributes(ended)["max-age"] == "0"
    assert whoami(cluster, both).status == 401


def test_session_ends_after_a_week(cluster: Cluster) -> None:
    both = halves(open_session(cluster, {"code": new_code(cluster)}))
    cluster.clock.ms += SESSION_MS - 1
    assert whoami(cluster, both).status == 200
    cluster.clock.ms += 1
    assert whoami(cluster, both).status == 401


def test_cookie_is_strict_secure_and_http_only(cluster: Cluster) -> None:
    cookie = cookie_attributes(open_session(cluster, {"code": new_code(cluster)}))
    assert re.fullmatch(r"__Host-detcloud-[0-9a-f]{12}", cookie["name"])
    assert cookie["samesite"] == "strict"
    assert {"httponly", "secure"} <= set(cookie)
    assert (cookie["path"], "domain" in cookie) == ("/", False)


def test_cookie_of_a_loopback_host_needs_no_tls(cluster: Cluster) -> None:
    opened = open_session(cluster, {"code": new_code(cluster)}, [LOOPBACK])
    cookie = cookie_attributes(opened)
    assert re.fullmatch(r"detcloud-[0-9a-f]{12}", cookie["name"])
    assert "secure" not in cookie
    assert whoami(cluster, [LOOPBACK, *halves(opened)]).status == 200


def test_bearer_token_takes_precedence_over_a_session(cluster: Cluster) -> None:
    both = halves(open_session(cluster, {"code": new_code(cluster)}))
    admin = call(cluster.app, "GET", "/api/v1/whoami", token=TOKENS[Role.ADMIN], headers=both)
    assert admin.json["role"] == "admin"
    assert whoami(cluster, [*both, ("authorization", "Bearer nobody")]).status == 401


def guess(cluster: Cluster, address: str, content: object = None) -> Answer:
    """Sign in from an address, by default with an unknown code."""
    body = json.dumps(content or {"code": "dct_guess"}).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    sent = [("host", f"{HOST}:8080"), *headers]
    return asyncio.run(
        exchange(cluster.app, "POST", "/api/v1/sessions", sent, [body], client=(address, 5000))
    )


class Watch:
    """A monotonic clock that a test sets."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch(cluster: Cluster) -> Watch:
    watch = Watch()
    cluster.app.state.sign_in_limits = SignInLimits(watch)
    return watch


def test_guesses_from_one_address_are_limited_for_a_minute(cluster: Cluster, watch: Watch) -> None:
    code = new_code(cluster)
    for content in ({"code": "dct_guess"}, {"token": "dct_guess"}) * (ADDRESS_REFUSALS_MAX // 2):
        assert guess(cluster, "203.0.113.1", content).status == 401
    refused = guess(cluster, "203.0.113.1", {"code": code})
    assert (refused.status, refused.code) == (429, "rate_limited")
    assert "from your address" in refused.json["error"]["message"]
    # A second address has a separate limit, and the refused sign-in does not use up the code.
    assert guess(cluster, "203.0.113.2").status == 401
    watch.seconds += WINDOW_SECONDS
    assert guess(cluster, "203.0.113.1", {"code": code}).status == 201


def test_addresses_of_an_ipv6_network_share_a_limit(cluster: Cluster, watch: Watch) -> None:
    for number in range(ADDRESS_REFUSALS_MAX):
        assert guess(cluster, f"2001:db8::{number}").status == 401
    assert guess(cluster, "2001:db8::ffff").status == 429
    assert guess(cluster, "2001:db8:0:1::1").status == 401


def test_guesses_from_many_addresses_are_limited_together(cluster: Cluster, watch: Watch) -> None:
    for number in range(TOTAL_REFUSALS_MAX):
        assert guess(cluster, f"198.51.{number // 250}.{number % 250}").status == 401
    refused = guess(cluster, "203.0.113.9")
    assert (refused.status, "from your address" in refused.body.decode()) == (429, False)


def test_successful_sign_ins_are_not_limited(cluster: Cluster, watch: Watch) -> None:
    for _ in range(2 * ADDRESS_REFUSALS_MAX):
        assert guess(cluster, "203.0.113.1", {"token": USER}).status == 201


def test_concurrent_guesses_are_counted_from_the_start() -> None:
    limits = SignInLimits(Watch())
    with ExitStack() as attempts:
        for _ in range(ADDRESS_REFUSALS_MAX):
            attempts.enter_context(limits.count_attempt("203.0.113.1"))
        with pytest.raises(RequestError, match="too many sign-ins"):
            attempts.enter_context(limits.count_attempt("203.0.113.1"))
    # All attempts succeeded, so that no attempt counts.
    with limits.count_attempt("203.0.113.1"):
        pass


def test_refused_codes_cause_the_same_reads(tmp_path: Path) -> None:
    table = RecordedTable(SqliteTable(tmp_path / "state.db", synchronous="NORMAL"))
    cluster = build_cluster(tmp_path, table=table)
    used = new_code(cluster)
    assert open_session(cluster, {"code": used}).status == 201
    made = cluster.post("/tokens", {"description": "mine"}).json
    of_revoked = new_code(cluster, made["token"])
    call(cluster.app, "DELETE", f"/api/v1/tokens/{made['id']}", token=USER)
    expired = new_code(cluster)
    counts_by_code = []
    for code in ("dct_guess", used, of_revoked, expired):
        if code == expired:
            cluster.clock.ms += CODE_MS
        table.calls.clear()
        assert open_session(cluster, {"code": code}).status == 401
        counts_by_code.append(dict(table.calls))
    assert counts_by_code == [{"get": 1, "get_many": 1}] * 4


def exchange_code(cluster: Cluster, code: str, *headers: tuple[str, str]) -> Answer:
    content = {"code": code, "description": "laptop"}
    path = "/api/v1/sign-in-codes/token"
    return call(cluster.app, "POST", path, headers=list(headers), content=content)


def test_code_gives_a_token_of_the_creator(cluster: Cluster) -> None:
    made = exchange_code(cluster, new_code(cluster))
    assert made.status == 201
    assert (made.json["user"], made.json["role"]) == ("user-1", "user")
    # The token of the creator belongs to the cluster itself and does not expire.
    assert made.json["expires_ms"] is None
    answer = call(cluster.app, "GET", "/api/v1/whoami", token=made.json["token"])
    assert answer.json == {"user": "user-1", "role": "user"}
    (listed,) = call(cluster.app, "GET", "/api/v1/tokens", token=USER).json["items"]
    assert (listed["id"], listed["description"]) == (made.json["id"], "laptop")
    assert "token" not in listed


def test_code_gives_a_token_or_a_session_once(cluster: Cluster) -> None:
    code = new_code(cluster)
    assert exchange_code(cluster, code).status == 201
    assert exchange_code(cluster, code).code == "unauthenticated"
    assert open_session(cluster, {"code": code}).code == "unauthenticated"
    other = new_code(cluster)
    assert open_session(cluster, {"code": other}).status == 201
    assert exchange_code(cluster, other).code == "unauthenticated"


def test_expired_code_gives_no_token(cluster: Cluster) -> None:
    code = new_code(cluster)
    cluster.clock.ms += CODE_MS
    assert exchange_code(cluster, code).code == "unauthenticated"


def test_token_of_a_code_ends_with_the_token_of_the_creator(cluster: Cluster) -> None:
    maker = cluster.post("/tokens", {"expires_days": 1}).json
    made = exchange_code(cluster, new_code(cluster, maker["token"])).json
    assert made["expires_ms"] == maker["expires_ms"]
    call(cluster.app, "DELETE", f"/api/v1/tokens/{maker['id']}", token=USER)
    assert call(cluster.app, "GET", "/api/v1/whoami", token=made["token"]).status == 401


def test_page_of_another_site_gets_no_token(cluster: Cluster) -> None:
    answer = exchange_code(cluster, new_code(cluster), ("sec-fetch-site", "cross-site"))
    assert answer.code == "forbidden"


def test_wrong_codes_count_as_refused_sign_ins(cluster: Cluster) -> None:
    for _ in range(ADDRESS_REFUSALS_MAX):
        assert exchange_code(cluster, "dct_wrong").status == 401
    assert exchange_code(cluster, new_code(cluster)).status == 429


def test_cookie_needs_no_tls_where_the_operator_allows_plain_http(cluster: Cluster) -> None:
    cluster.app.state.allows_plain_cookies = True
    opened = open_session(cluster, {"token": USER})
    attributes = cookie_attributes(opened)
    assert "secure" not in attributes
    assert not attributes["name"].startswith("__Host-")
    assert whoami(cluster, halves(opened)).status == 200
