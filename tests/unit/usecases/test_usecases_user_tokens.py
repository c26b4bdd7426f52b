"""Tokens of users: permissions to create and revoke, and refused misuse."""

import logging
import threading
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.api.access_log import JsonLines
from control_plane.errors import Code, RequestError
from control_plane.usecases.user_tokens import MAKERS_MAX, encrypt_token, extend_makers
from detcloud.shared.tokens import TOKEN_PREFIX
from simulator.faults.table_faults import InterleavingTable
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

DAY_MS = 24 * 3600 * 1000
USER, ADMIN = TOKENS[Role.USER], TOKENS[Role.ADMIN]


def ask(
    cluster: Cluster,
    method: str,
    path: str,
    token: str,
    content: object = None,
    key: str | None = None,
) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    return call(cluster.app, method, V1 + path, token=token, headers=headers, content=content)


def make(cluster: Cluster, token: str, **fields: Any) -> dict[str, Any]:
    answer = ask(cluster, "POST", "/tokens", token, fields)
    assert answer.status == 201, answer.body
    return dict(answer.json)


def works(cluster: Cluster, token: str) -> bool:
    answer = ask(cluster, "GET", "/whoami", token)
    assert answer.status in (200, 401)
    return answer.status == 200


def token_ids(cluster: Cluster, token: str) -> list[int]:
    return [item["id"] for item in ask(cluster, "GET", "/tokens", token).json["items"]]


def test_created_token_is_shown_once_and_works(cluster: Cluster) -> None:
    made = make(cluster, USER, description="my laptop", expires_days=30)
    token = made.pop("token")
    assert token.startswith(TOKEN_PREFIX)
    assert made == {
        "id": 1,
        "user": "user-1",
        "role": "user",
        "description": "my laptop",
        "created_ms": NOW_MS,
        "expires_ms": NOW_MS + 30 * DAY_MS,
        "revoked": False,
        "resource_pool": None,
        "once": False,
        "used_by": None,
    }
    assert ask(cluster, "GET", "/whoami", token).json == {"user": "user-1", "role": "user"}
    answer = ask(cluster, "GET", "/tokens", token)
    assert answer.json == {"items": [made], "next_cursor": None}
    assert token not in answer.body.decode()


def test_admin_creates_tokens_of_any_user_and_role(cluster: Cluster) -> None:
    made = make(cluster, ADMIN, user="ada@example.org", role="admin")
    assert (made["user"], made["role"], made["expires_ms"]) == ("ada@example.org", "admin", None)
    assert make(cluster, made["token"])["role"] == "user"
    assert token_ids(cluster, USER) == []
    assert token_ids(cluster, ADMIN) == [2, 1]


@pytest.mark.parametrize("fields", [{"user": "ada"}, {"role": "admin"}, {"user": "admin-1"}])
def test_users_create_no_tokens_of_other_users_or_roles(
    cluster: Cluster, fields: dict[str, str]
) -> None:
    answer = ask(cluster, "POST", "/tokens", USER, fields)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert token_ids(cluster, ADMIN) == []
    assert make(cluster, USER, user="user-1", role="user")["id"] == 1


def test_admins_token_of_role_user_has_no_admin_rights(cluster: Cluster) -> None:
    mine = make(cluster, ADMIN)
    assert (mine["user"], mine["role"]) == ("admin-1", "user")
    answer = ask(cluster, "POST", "/tokens", mine["token"], {"role": "admin"})
    assert answer.status == 403


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_days": 0},
        {"expires_days": 366},
        {"expires_days": "7"},
        {"expires_days": True},
        {"role": "agent"},
        {"role": "join"},
        {"user": "agent node"},
        {"user": ""},
        {"user": "a" * 65},
        {"user": "a\nb"},
        {"user": "a#b"},
        {"description": "x" * 201},
        {"token": "mine"},
    ],
)
def test_rejects_invalid_token_requests(cluster: Cluster, fields: dict[str, object]) -> None:
    answer = ask(cluster, "POST", "/tokens", ADMIN, fields)
    assert (answer.status, answer.code) == (422, "invalid")
    assert token_ids(cluster, ADMIN) == []


def test_token_expires(cluster: Cluster) -> None:
    token = make(cluster, USER, expires_days=1)["token"]
    cluster.clock.ms = NOW_MS + DAY_MS - 1
    assert works(cluster, token)
    cluster.clock.ms = NOW_MS + DAY_MS
    answer = ask(cluster, "GET", "/whoami", token)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert token_ids(cluster, USER) == [1]


def test_new_token_does_not_outlive_the_maker(cluster: Cluster) -> None:
    short = make(cluster, USER, expires_days=2)
    for days in (None, 1, 300):
        content = {} if days is None else {"expires_days": days}
        child = make(cluster, short["token"], **content)
        assert child["expires_ms"] == NOW_MS + min(days or 365, 2) * DAY_MS


def test_revoked_token_ends_at_once(cluster: Cluster) -> None:
    made = make(cluster, USER)
    assert works(cluster, made["token"])
    answer = ask(cluster, "DELETE", f"/tokens/{made['id']}", USER)
    assert answer.status == 200
    assert answer.json == {**{k: v for k, v in made.items() if k != "token"}, "revoked": True}
    refused = ask(cluster, "GET", "/whoami", made["token"])
    assert (refused.status, refused.code) == (401, "unauthenticated")
    assert ask(cluster, "DELETE", f"/tokens/{made['id']}", USER).json["revoked"]


def test_revocation_ends_tokens_created_with_the_token(cluster: Cluster) -> None:
    first = make(cluster, ADMIN, user="ada")
    second = make(cluster, first["token"])
    third = make(cluster, second["token"])
    beside = make(cluster, first["token"])
    assert ask(cluster, "DELETE", f"/tokens/{second['id']}", ADMIN).status == 200
    alive = [works(cluster, made["token"]) for made in (first, second, third, beside)]
    assert alive == [True, False, False, True]
    items = ask(cluster, "GET", "/tokens", ADMIN).json["items"]
    revoked = {item["id"]: item["revoked"] for item in items}
    expected = {first["id"]: False, second["id"]: True, third["id"]: True, beside["id"]: False}
    assert revoked == expected
    assert ask(cluster, "DELETE", f"/tokens/{first['id']}", ADMIN).status == 200
    assert not works(cluster, beside["token"])


def test_concurrently_revoked_token_creates_no_token(cluster: Cluster) -> None:
    maker = make(cluster, ADMIN, user="ada")

    def revoke() -> None:
        assert ask(cluster, "DELETE", f"/tokens/{maker['id']}", ADMIN).status == 200

    cluster.services.engine.table = InterleavingTable(cluster.services.table, revoke)
    assert ask(cluster, "POST", "/tokens", maker["token"], {}).status == 401
    assert token_ids(cluster, ADMIN) == [maker["id"]]


def test_chain_of_makers_is_limited(cluster: Cluster) -> None:
    token = make(cluster, ADMIN, user="ada")["token"]
    for _ in range(MAKERS_MAX):
        token = make(cluster, token)["token"]
    answer = ask(cluster, "POST", "/tokens", token, {})
    assert (answer.status, answer.code) == (409, "conflict")


def test_token_may_revoke_itself(cluster: Cluster) -> None:
    made = make(cluster, USER)
    assert ask(cluster, "DELETE", f"/tokens/{made['id']}", made["token"]).status == 200
    assert not works(cluster, made["token"])


def test_only_admins_revoke_tokens_of_other_users(cluster: Cluster) -> None:
    others = make(cluster, ADMIN, user="ada")
    answer = ask(cluster, "DELETE", f"/tokens/{others['id']}", USER)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert works(cluster, others["token"])
    assert ask(cluster, "DELETE", f"/tokens/{others['id']}", ADMIN).status == 200
    assert not works(cluster, others["token"])


@pytest.mark.parametrize(("name", "status"), [("7", 404), ("0", 422), ("x", 422), ("-1", 422)])
def test_revoking_unknown_token_is_not_found(cluster: Cluster, name: str, status: int) -> None:
    assert ask(cluster, "DELETE", f"/tokens/{name}", ADMIN).status == status


def test_tokens_of_the_cluster_cannot_be_revoked(cluster: Cluster) -> None:
    for made in [make(cluster, ADMIN, role="admin") for _ in range(2)]:
        ask(cluster, "DELETE", f"/tokens/{made['id']}", ADMIN)
    assert works(cluster, ADMIN)


def test_repeated_request_gets_the_same_token(cluster: Cluster) -> None:
    first = ask(cluster, "POST", "/tokens", USER, {"description": "a"}, key="k1")
    again = ask(cluster, "POST", "/tokens", USER, {"description": "a"}, key="k1")
    assert (again.status, again.json) == (201, first.json)
    assert works(cluster, again.json["token"])
    assert token_ids(cluster, USER) == [1]
    assert ask(cluster, "POST", "/tokens", USER, {"description": "b"}, key="k1").status == 409


def test_second_token_of_the_user_cannot_decrypt_the_answer(cluster: Cluster) -> None:
    other = make(cluster, USER)["token"]
    ask(cluster, "POST", "/tokens", USER, {}, key="k1")
    answer = ask(cluster, "POST", "/tokens", other, {}, key="k1")
    assert (answer.status, answer.code) == (409, "conflict")


def test_concurrent_requests_create_different_tokens(cluster: Cluster) -> None:
    made: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: made.append(make(cluster, USER))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(token["id"] for token in made) == list(range(1, 9))
    assert len({token["token"] for token in made}) == 8


def test_table_contains_no_token(cluster: Cluster) -> None:
    tokens = [make(cluster, USER)["token"]]
    tokens.append(ask(cluster, "POST", "/tokens", USER, {}, key="k1").json["token"])
    table = cluster.services.table
    for partition in ("tokens", "token-entries", "idempotency#user-1"):
        rows = table.query(partition, " ", "\x7f").rows
        assert rows
        for row in rows:
            for token in tokens:
                assert token.encode() not in row.body
                assert token.removeprefix(TOKEN_PREFIX).encode() not in row.body
                assert token not in row.key.sort


def test_record_names_creator_and_revoker(cluster: Cluster) -> None:
    made = make(cluster, ADMIN, user="ada")
    ask(cluster, "DELETE", f"/tokens/{made['id']}", made["token"])
    (row,) = cluster.services.table.query("token-entries", " ", "\x7f").rows
    assert b'"made_by": "admin-1"' in row.body
    assert b'"revoked_by": "ada"' in row.body


def test_encrypting_twice_decrypts_and_pads_depend_on_id() -> None:
    content = b"dct_" + b"x" * 43
    hidden = encrypt_token(content, "mine", 1)
    assert encrypt_token(hidden, "mine", 1) == content
    assert hidden not in (
        content,
        encrypt_token(content, "mine", 2),
        encrypt_token(content, "yours", 1),
    )


# Misuse -------------------------------------------------------------------------------------------

MALFORMED = [
    [],
    [("authorization", "")],
    [("authorization", "Bearer")],
    [("authorization", "Bearer ")],
    [("authorization", f"Basic {USER}")],
    [("authorization", f"Token {USER}")],
    [("authorization", USER)],
    [("authorization", f"Bearer  {USER}")],
    [("authorization", f"Bearer {USER} ")],
    [("authorization", f"Bearer {USER},Bearer {ADMIN}")],
    [("authorization", f"Bearer {USER}\x00")],
    [("authorization", f"Bearer {USER}\xe9")],
    [("authorization", f"Bearer {USER.upper()}")],
    [("authorization", "Bearer " + "x" * 100_000)],
    [("authorization", f"Bearer {USER}"), ("authorization", f"Bearer {USER}")],
    [("authorization", "Bearer nonsense"), ("authorization", f"Bearer {ADMIN}")],
    [("cookie", f"token={USER}")],
    [("x-authorization", f"Bearer {USER}")],
    [("proxy-authorization", f"Bearer {USER}")],
]


@pytest.mark.parametrize("headers", MALFORMED, ids=range(len(MALFORMED)))
def test_rejects_malformed_headers(cluster: Cluster, headers: list[tuple[str, str]]) -> None:
    answer = call(cluster.app, "GET", f"{V1}/whoami", headers=headers)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert USER not in answer.body.decode()


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "Authorization"])
def test_rejects_token_in_query(cluster: Cluster, name: str) -> None:
    for value in (USER, f"Bearer%20{USER}"):
        answer = call(cluster.app, "GET", f"{V1}/whoami?{name}={value}")
        assert answer.status == 401


def test_rejects_agent_token_on_user_routes(cluster: Cluster) -> None:
    agent = Agent(cluster)
    for method, path in (
        ("GET", "/tokens"),
        ("POST", "/tokens"),
        ("DELETE", "/tokens/1"),
        ("GET", "/whoami"),
        ("GET", "/experiments"),
        ("POST", "/agents/node/disable"),
    ):
        for token in (agent.token, TOKENS[Role.JOIN]):
            answer = ask(cluster, method, path, token)
            assert (answer.status, answer.code) == (403, "forbidden"), path


def test_rejects_user_token_on_agent_routes(cluster: Cluster) -> None:
    made = make(cluster, ADMIN, role="admin")["token"]
    Agent(cluster)
    for path in ("/agents", "/agents/node/sync"):
        assert ask(cluster, "POST", path, made, {}).status == 403


def test_agent_token_cannot_be_revoked_by_id(cluster: Cluster) -> None:
    agent = Agent(cluster)
    assert ask(cluster, "DELETE", "/tokens/1", ADMIN).status == 404
    assert agent.sync().status == 200


def test_tokens_appear_in_no_log_and_no_error(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = make(cluster, USER)["token"]
    answers = [
        ask(cluster, "GET", f"/whoami?token={made}", made),
        ask(cluster, "POST", "/tokens", made, {"role": made}),
        ask(cluster, "POST", "/tokens", made, {"user": made, "expires_days": made}),
        ask(cluster, "POST", "/tokens", made, {made: 1}, key=made[:10]),
        ask(cluster, "DELETE", "/tokens/99", made),
        ask(cluster, "DELETE", "/tokens/1", made),
        ask(cluster, "GET", "/whoami", made),
    ]
    lines = "".join(JsonLines().format(record) for record in caplog.records)
    assert "/whoami" in lines
    assert made not in lines
    assert USER not in lines
    # The fourth answer repeats an unknown field's name, to the client only.
    for number, answer in enumerate(answers):
        assert made not in answer.body.decode() or number == 3


def test_token_revoked_after_the_check_makes_no_token(cluster: Cluster) -> None:
    made = make(cluster, USER)
    assert ask(cluster, "DELETE", f"/tokens/{made['id']}", USER).status < 300
    table, tokens = cluster.services.table, cluster.services.tokens
    with pytest.raises(RequestError, match="was revoked in the meantime") as refused:
        extend_makers(table, tokens, (), made["token"])
    assert refused.value.code is Code.UNAUTHENTICATED
    # Tokens of the cluster have no row either, and are valid.
    assert extend_makers(table, tokens, (), USER) == ()
