from pathlib import Path

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import StaticTokens, token_digest
from control_plane.api.authentication import authenticate, bearer_token
from control_plane.api.route_guards import (
    AccessRule,
    GuardedRoute,
    guarded_router,
    require_role,
)
from control_plane.api.routes import all_routes
from control_plane.errors import RequestError
from detcloud.shared.tokens import mint_token
from tests.unit.api.cluster import TOKENS, Cluster, build_app_with_notes
from tests.unit.api.exchange import call

OPEN = {
    ("GET", "/api/v1/health"),
    # The body holds a sign-in code or a token.
    ("POST", "/api/v1/sessions"),
    ("POST", "/api/v1/sign-in-codes/token"),
    # Public code of the installer and the page.
    ("GET", "/api/v1/agent-installer"),
    ("GET", "/"),
    ("GET", "/ui"),
    ("GET", "/ui/files.json"),
    ("GET", "/ui/{path:path}"),
    # The proof in the body stands for a token.
    ("POST", "/api/v1/instances/{instance_id}/agent-code"),
    ("PUT", "/api/v1/instances/{instance_id}/boot-report"),
    ("PUT", "/api/v1/instances/{instance_id}/identity"),
}
SIGNED = {("GET", "/api/v1/objects/{key:path}"), ("PUT", "/api/v1/objects/{key:path}")}


def access_rules() -> dict[tuple[str, str], AccessRule]:
    """Return the access rule of each method and path."""
    rules = {}
    for route in all_routes():
        assert isinstance(route, GuardedRoute), f"{route} is not guarded"
        for method in route.methods or ():
            rules[method, route.path] = route.access_rule
    return rules


def test_routes_require_a_role_or_are_listed_as_open() -> None:
    rules = access_rules()
    assert {route for route, rule in rules.items() if rule.is_signed} == SIGNED
    without = {route for route, rule in rules.items() if not rule.roles}
    assert without == OPEN | SIGNED


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer nobody", "Basic dXNlcjpwYXNz", "Bearer " + "x" * 300],
)
def test_routes_with_roles_refuse_strangers(cluster: Cluster, authorization: str | None) -> None:
    headers = [] if authorization is None else [("authorization", authorization)]
    for (method, path), rule in access_rules().items():
        if not rule.roles:
            continue
        target = path.replace("{sha256}", "0" * 64)
        answer = call(cluster.app, method, target, headers=headers)
        assert (answer.status, answer.code) == (401, "unauthenticated"), path
        assert answer.headers["www-authenticate"] == "Bearer"


def test_routes_refuse_roles_outside_the_rule(cluster: Cluster) -> None:
    for (method, path), rule in access_rules().items():
        for role in set(Role) - rule.roles if rule.roles else ():
            answer = call(cluster.app, method, path, token=TOKENS[role])
            assert (answer.status, answer.code) == (403, "forbidden"), (path, role)


def test_rejects_handler_without_access_rule() -> None:
    with pytest.raises(TypeError, match="/secrets"):
        guarded_router("secrets").get("/secrets")(lambda: None)


def test_request_completes_only_the_requested_route(tmp_path: Path) -> None:
    app = build_app_with_notes(tmp_path)
    notes, broken = app.routes[-2:]
    call(app, "POST", "/api/v1/notes", token=TOKENS[Role.USER], content={"text": "a"})
    assert [hasattr(route, "dependant") for route in (notes, broken)] == [True, False]
    answer = call(app, "DELETE", "/api/v1/broken")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")


def test_rejects_empty_list_of_roles() -> None:
    with pytest.raises(TypeError, match="role"):
        require_role()


def test_stranger_is_refused_before_the_body_is_read(cluster: Cluster) -> None:
    answer = call(cluster.app, "POST", "/api/v1/model-code", body=b"{not json")
    assert (answer.status, answer.bytes_taken) == (401, 0)


def test_stranger_is_refused_before_parameters_are_checked(cluster: Cluster) -> None:
    assert call(cluster.app, "GET", "/api/v1/model-code/nonsense").status == 401


def test_body_with_too_large_content_length_is_refused_unread(tmp_path: Path) -> None:
    app = build_app_with_notes(tmp_path)
    answer = call(app, "POST", "/api/v1/notes", token=TOKENS[Role.USER], body=b"x" * 101)
    assert (answer.status, answer.code, answer.bytes_taken) == (413, "too_large", 0)


def test_chunked_body_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    app = build_app_with_notes(tmp_path)
    # 40 + 40 + 40 = 120 > 100: the third block is the last block read.
    blocks = [b"x" * 40] * 5
    answer = call(app, "POST", "/api/v1/notes", token=TOKENS[Role.USER], body=blocks)
    assert (answer.status, answer.code, answer.bytes_taken) == (413, "too_large", 120)


@pytest.mark.parametrize("length", ["-1", "1e3", "", "١"])
def test_rejects_invalid_content_length(tmp_path: Path, length: str) -> None:
    headers = [("content-length", length.encode().decode("latin-1"))]
    app = build_app_with_notes(tmp_path)
    answer = call(app, "POST", "/api/v1/notes", token=TOKENS[Role.USER], headers=headers)
    assert (answer.status, answer.code) == (422, "invalid")


def test_handler_receives_the_caller(tmp_path: Path) -> None:
    app = build_app_with_notes(tmp_path)
    answer = call(app, "POST", "/api/v1/notes", token=TOKENS[Role.USER], content={"text": "a"})
    assert answer.json == {"by": "user-1", "text": "a"}


def test_bearer_scheme_ignores_case() -> None:
    assert authenticate(_tokens("t"), bearer_token("bEARER t")).role is Role.USER


def test_tokens_are_random_with_prefix_and_43_characters() -> None:
    first, second = mint_token(), mint_token()
    assert first != second
    assert first.startswith("dct_")
    assert len(first) == 4 + 43  # 32 bytes in base64 without padding


def test_digest_of_a_token_does_not_authenticate() -> None:
    with pytest.raises(RequestError):
        authenticate(_tokens("t"), token_digest("t"))


def _tokens(token: str) -> StaticTokens:
    return StaticTokens({token_digest(token): Principal("ann", Role.USER)})
