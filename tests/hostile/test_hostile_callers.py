"""Every route of the API's description, requested by callers without permission.

The refusal precedes any check of parameters, bodies or objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import issue_agent_token, token_digest, token_put
from detcloud.shared.tokens import mint_token
from tests.thinning import every
from tests.unit.api.agent_side import CONFIG, Agent, enrol
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

OPEN = {
    ("get", f"{V1}/health"),
    # Code that everybody may have, and proofs that stand for a token.
    ("get", f"{V1}/agent-installer"),
    ("put", f"{V1}/instances/{{instance_id}}/identity"),
    ("put", f"{V1}/instances/{{instance_id}}/boot-report"),
    ("post", f"{V1}/instances/{{instance_id}}/agent-code"),
    # Routes with a sign-in code or a token in the body.
    ("post", f"{V1}/sessions"),
    ("post", f"{V1}/sign-in-codes/token"),
}
SIGNED = re.compile(rf"{V1}/objects/")
JOINS = {("post", f"{V1}/agents")}
AGENTS = {
    ("post", f"{V1}/agents/{{agent_id}}/sync"),
    ("post", f"{V1}/agents/{{agent_id}}/storage-credentials"),
    ("post", f"{V1}/agents/{{agent_id}}/data-credentials"),
    ("post", f"{V1}/agents/{{agent_id}}/registry-credentials"),
    ("post", f"{V1}/agents/{{agent_id}}/early-image-credentials"),
    ("post", f"{V1}/agents/{{agent_id}}/tunnels/{{tunnel_id}}/tickets"),
    ("delete", f"{V1}/agents/{{agent_id}}/tunnels/{{tunnel_id}}"),
    ("get", f"{V1}/agents/{{agent_id}}/package-archives"),
    ("post", f"{V1}/agents/{{agent_id}}/package-archives"),
}
BOTH = {("get", f"{V1}/model-code/{{sha256}}")}
AGENT_CODE = {("get", f"{V1}/agent-code"), ("get", f"{V1}/agent-code/{{sha256}}")}
METRICS = {("get", f"{V1}/metrics")}
ADMINS = re.compile(
    rf"{V1}/agents/.*/(enable|disable|upgrade)$|{V1}/resource-pools/.*/(un)?drain$"
    r"|.*/retention/cleanup$"
)
CHANGED_BY_ADMINS = re.compile(
    rf"{V1}/(resource-pools/|cluster/configuration|agent-users|agents/{{agent_id}}$)"
)
MISSING = {"uuid": "0" * 8, "sha256": "0" * 64, "agent_id": "nobody", "name": "nothing"}
MISSING |= {"resource_pool": "nowhere", "job_id": "nobody"}

Route = tuple[str, str]


def routes(cluster: Cluster) -> Iterator[Route]:
    """Yield method and path of each route that is neither open nor signed."""
    paths = cluster.get("/openapi.json").json["paths"]
    for path, methods in paths.items():
        for method in methods.keys() & {"get", "post", "put", "patch", "delete"}:
            if (method, path) not in OPEN and not SIGNED.match(path):
                yield method, path


def is_for(route: Route, role: Role) -> bool:
    """Return whether the role may use the route, according to docs/api.md."""
    if route in JOINS:
        return role is Role.JOIN
    if route in AGENT_CODE:
        return role is not Role.METRICS
    if route in AGENTS:
        return role is Role.AGENT
    if ADMINS.search(route[1]) or (route[0] != "get" and CHANGED_BY_ADMINS.match(route[1])):
        return role is Role.ADMIN
    if route in METRICS and role is Role.METRICS:
        return True
    return role in (Role.USER, Role.ADMIN) or (route in BOTH and role is Role.AGENT)


def fill_path(path: str, **values: object) -> str:
    return re.sub(
        r"\{(\w+)\}", lambda name: str(values.get(name[1], MISSING.get(name[1], 7))), path
    )


def call_route(cluster: Cluster, route: Route, token: str | None, **options: Any) -> Answer:
    return call(cluster.app, route[0].upper(), fill_path(route[1]), token=token, **options)


@pytest.fixture
def full(cluster: Cluster) -> Cluster:
    """Return a cluster with objects behind most routes."""
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    agent.take_work()
    cluster.post("/tokens", {"description": "mine"})
    path = f"{V1}/templates/nothing"
    content = {"config": "max_restarts: 1"}
    assert call(cluster.app, "PUT", path, token=TOKENS[Role.USER], content=content).status == 200
    return cluster


def token_with(cluster: Cluster, **fields: Any) -> str:
    token = mint_token()
    holds = replace(Principal("ann", Role.ADMIN), **fields)
    cluster.services.table.commit((token_put(token_digest(token), holds),))
    return token


def revoked_token(cluster: Cluster) -> str:
    made = cluster.post("/tokens", {}).json
    path = f"{V1}/tokens/{made['id']}"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).status == 200
    return str(made["token"])


def replaced_token(cluster: Cluster) -> str:
    """Return the token of an agent that has enrolled again."""
    before = str(enrol(cluster, "twice").json["token"])
    assert enrol(cluster, "twice").status == 200
    return before


STRANGERS = {
    "nothing": lambda cluster: None,
    "rubbish": lambda cluster: "dct_" + "x" * 43,
    "a digest": lambda cluster: token_digest(TOKENS[Role.ADMIN]),
    "a token and more": lambda cluster: TOKENS[Role.ADMIN] + "x",
    "a token in capitals": lambda cluster: TOKENS[Role.ADMIN].upper(),
    "two tokens": lambda cluster: f"{TOKENS[Role.ADMIN]},{TOKENS[Role.ADMIN]}",
    "control characters": lambda cluster: "\x01\x7f",
    "latin letters": lambda cluster: "dct_\xff\xfe",
    "a star": lambda cluster: "*",
    "an expired one": lambda cluster: token_with(cluster, expires_ms=NOW_MS),
    "a revoked_token one": revoked_token,
    "an agent's former one": replaced_token,
}


@pytest.mark.parametrize("stranger", every(3, STRANGERS))
def test_callers_without_a_valid_token_get_the_same_refusal(full: Cluster, stranger: str) -> None:
    token = STRANGERS[stranger](full)
    answers = set()
    for route in routes(full):
        # Neither a broken body, a wrong content type nor an invalid parameter is checked first.
        for options in (
            {},
            {"body": b"{", "headers": [("content-type", "application/json")]},
            {"body": b"x" * 100, "headers": [("content-length", "99999999999")]},
            {"headers": [("idempotency-key", "\x00")]},
        ):
            answer = call_route(full, route, token, **options)
            assert (answer.status, answer.code) == (401, "unauthenticated"), (route, options)
            assert answer.bytes_taken == 0
            answers.add(answer.body)
        for value in ("..", "-1", "x" * 5000, "%00"):
            target = re.sub(r"\{\w+\}", value, route[1])
            assert call(full.app, route[0].upper(), target, token=token).status in (401, 404)
    assert len(answers) == 1


@pytest.mark.parametrize("role", list(Role))
def test_role_reaches_only_the_permitted_routes(full: Cluster, role: Role) -> None:
    reached = {}
    for route in routes(full):
        answer = call_route(full, route, TOKENS[role], body=b"{")
        reached[route] = answer.status != 403
        if not reached[route]:
            assert answer.code == "forbidden"
            assert answer.bytes_taken == 0
        assert answer.status != 401
    assert reached == {route: is_for(route, role) for route in reached}


def test_agent_token_works_only_for_the_agents_own_route(full: Cluster) -> None:
    mine, theirs = Agent(full, "mine"), Agent(full, "theirs")
    body = {"epoch": 1, "known": [], "wait_ms": 0}
    for name, status in [("mine", 200), ("theirs", 403), ("nobody", 403), ("MINE", 403)]:
        path = f"{V1}/agents/{name}/sync"
        answer = call(full.app, "POST", path, token=mine.token, content=body)
        assert answer.status == status, name
    for tricky in ("mine%2F..%2Ftheirs", "theirs%00", "..%2Ftheirs", "mine;theirs", "theirs%0a"):
        path = f"{V1}/agents/{tricky}/sync"
        answer = call(full.app, "POST", path, token=mine.token, content=body)
        assert answer.status in (403, 404, 422), tricky
    assert theirs.sync().status == 200


def test_token_of_an_old_epoch_is_refused(full: Cluster) -> None:
    agent = Agent(full, "again")
    newer = Agent(full, "again")
    assert agent.sync().status == 401
    # The newer token is refused for the older epoch too.
    assert newer.sync(epoch=agent.epoch).status == 409
    assert newer.sync().status == 200
    other = issue_agent_token(full.services.table, "someone", 1)
    assert call(full.app, "GET", f"{V1}/experiments", token=other).status == 403


def test_user_cannot_change_tokens_and_templates_of_others(full: Cluster) -> None:
    other = token_with(full, user="eve", role=Role.USER)
    assert call(full.app, "GET", f"{V1}/tokens", token=other).json["items"] == []
    assert call(full.app, "DELETE", f"{V1}/tokens/1", token=other).status == 403
    path = f"{V1}/templates/nothing"
    assert call(full.app, "DELETE", path, token=other).status == 403
    content = {"config": "max_restarts: 5"}
    assert call(full.app, "PUT", path, token=other, content=content).status == 403
    made = {"role": "admin"}
    assert call(full.app, "POST", f"{V1}/tokens", token=other, content=made).status == 403


def test_idempotency_keys_of_users_are_independent(full: Cluster) -> None:
    other = token_with(full, user="eve", role=Role.USER)
    headers = [("idempotency-key", "shared")]
    content = {"description": "d"}
    answers = [
        call(full.app, "POST", f"{V1}/tokens", token=token, headers=headers, content=content)
        for token in (TOKENS[Role.USER], other)
    ]
    assert [answer.status for answer in answers] == [201, 201]
    assert answers[0].json["user"] == "user-1"
    assert answers[1].json["user"] == "eve"
    # A user name with the row separator leads to no other user's row.
    sly = token_with(full, user="user-1#I", role=Role.USER)
    again = call(full.app, "POST", f"{V1}/tokens", token=sly, headers=headers, content=content)
    assert again.json["id"] not in {answer.json["id"] for answer in answers}


def test_cross_site_requests_neither_change_nor_read_data(full: Cluster) -> None:
    # A browser sends cookies by itself, but no token.
    site = [("origin", "https://evil.test"), ("referer", "https://evil.test/"), ("cookie", "t=1")]
    token = TOKENS[Role.ADMIN]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; b=b"):
        headers = [*site, ("content-type", kind), ("sec-fetch-site", "cross-site")]
        for route in routes(full):
            body = f"token={token}&access_token={token}".encode()
            assert call_route(full, route, None, headers=headers, body=body).status == 401
    for query in ("token", "access_token", "authorization", "bearer"):
        target = f"{V1}/experiments?{query}={token}"
        assert call(full.app, "GET", target, headers=site).status == 401
    cookie = [("cookie", f"token={token}; authorization=Bearer {token}; session={token}")]
    assert call(full.app, "GET", f"{V1}/experiments", headers=cookie).status == 401


def test_cross_origin_requests_are_never_allowed(full: Cluster) -> None:
    preflight = [
        ("origin", "https://evil.test"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
        ("access-control-request-private-network", "true"),
    ]
    for route in routes(full):
        for method, token in (("OPTIONS", None), (route[0].upper(), TOKENS[Role.ADMIN])):
            answer = call(full.app, method, fill_path(route[1]), token=token, headers=preflight)
            names = {name.lower() for name in answer.headers}
            assert not {name for name in names if name.startswith("access-control")}, route
            assert "set-cookie" not in names
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/html"]
)
def test_body_with_a_wrong_content_type_is_refused(full: Cluster, kind: str) -> None:
    headers = [("content-type", kind)]
    body = b'{"sha256": "' + b"0" * 64 + b'", "size": 10}'
    path = f"{V1}/model-code"
    answer = call(full.app, "POST", path, token=TOKENS[Role.USER], headers=headers, body=body)
    assert (answer.status, answer.code) == (422, "invalid")
