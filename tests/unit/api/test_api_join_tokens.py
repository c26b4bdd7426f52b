"""Join tokens that are good for one agent, and the credentials that follow them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.agents.leases import mark_ended_agent
from detcloud.shared.version import __version__
from tests.unit.api.agent_side import SLOTS
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call

HOUR_MS = 3600 * 1000
ONE, TWO = "a" * 32, "b" * 32


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path / "objects")


def admin(cluster: Cluster, method: str, path: str, content: object = None) -> Answer:
    return call(cluster.app, method, V1 + path, token=TOKENS[Role.ADMIN], content=content)


def once_token(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    body = {"role": "join", "resource_pool": "default", "once": True, **fields}
    answer = admin(cluster, "POST", "/tokens", body)
    assert answer.status == 201, answer.body
    return dict(answer.json)


def join(
    cluster: Cluster,
    token: str,
    credential: str = "",
    *,
    name: str = "gpu-1",
    installation: str = ONE,
    code: str = "",
) -> Answer:
    body = {
        "name": name,
        "resource_pool": "default",
        "slots": SLOTS,
        "installation": installation,
        "credential_sha256": digest_of(credential) if credential else "",
        "code": code,
    }
    return call(cluster.app, "POST", f"{V1}/agents", token=token, content=body)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def end_agent(cluster: Cluster, name: str = "gpu-1") -> None:
    engine = cluster.services.engine
    mark_ended_agent(engine.table, "default", name, NOW_MS, engine.advance_until_idle)


def test_token_lets_in_one_agent_only(cluster: Cluster) -> None:
    made = once_token(cluster)
    assert (made["once"], made["used_by"]) == (True, None)
    first = join(cluster, made["token"], "c1")
    assert (first.status, first.json["credential"]) == (200, True)
    other = join(cluster, made["token"], "c2", name="gpu-2", installation=TWO)
    assert (other.status, other.code) == (403, "forbidden")
    assert "used by agent gpu-1" in other.json["error"]["message"]
    [listed] = admin(cluster, "GET", "/tokens").json["items"]
    assert listed["used_by"] == "gpu-1"


def test_same_installation_repeats_a_lost_enrolment(cluster: Cluster) -> None:
    token = once_token(cluster)["token"]
    assert join(cluster, token, "c1").json["epoch"] == 1
    assert join(cluster, token, "c1").json["epoch"] == 2
    # The installation's id is not secret enough: the digest of the credential must be the same.
    assert join(cluster, token, "c2").status == 403
    assert join(cluster, token, "c1", installation=TWO).status == 409


def test_credential_enrols_again_without_the_join_token(cluster: Cluster) -> None:
    made = once_token(cluster)
    join(cluster, made["token"], "c1")
    admin(cluster, "DELETE", f"/tokens/{made['id']}")
    assert join(cluster, made["token"], "c1").status == 401
    again = join(cluster, "c1", "c1")
    assert (again.status, again.json["epoch"], again.json["credential"]) == (200, 2, True)


def test_credential_is_replaced_by_the_next(cluster: Cluster) -> None:
    join(cluster, once_token(cluster)["token"], "c1")
    assert join(cluster, "c1", "c2").status == 200
    assert join(cluster, "c1", "c2").status == 401
    # After a lost answer, the agent repeats the request with the next token.
    assert join(cluster, "c2", "c2").status == 200


def test_credential_is_valid_for_its_machine_only(cluster: Cluster) -> None:
    join(cluster, once_token(cluster)["token"], "c1")
    assert join(cluster, "c1", "c1", name="gpu-2").status == 403
    end_agent(cluster)
    assert join(cluster, "c1", "c1", installation=TWO).status == 409


def test_credential_outlives_a_lost_session(cluster: Cluster) -> None:
    join(cluster, once_token(cluster)["token"], "c1")
    end_agent(cluster)
    cluster.clock.ms += 400 * 24 * HOUR_MS
    assert join(cluster, "c1", "c2").status == 200


def test_name_of_a_lost_machine_stays_its_own(cluster: Cluster) -> None:
    join(cluster, once_token(cluster)["token"], "c1")
    end_agent(cluster)
    for token in (once_token(cluster)["token"], TOKENS[Role.JOIN]):
        refused = join(cluster, token, "c2", installation=TWO)
        assert refused.status == 409
        assert "detcloud agent remove gpu-1" in refused.json["error"]["message"]


def test_new_token_repairs_an_installation(cluster: Cluster) -> None:
    first = once_token(cluster)["token"]
    join(cluster, first, "c1")
    assert join(cluster, once_token(cluster)["token"], "c2").status == 200
    assert join(cluster, "c1", "c1").status == 401
    assert join(cluster, first, "c1").status == 401
    assert join(cluster, "c2", "c2").status == 200


def test_token_expires_after_an_hour(cluster: Cluster) -> None:
    made = once_token(cluster)
    assert made["expires_ms"] == NOW_MS + HOUR_MS
    cluster.clock.ms += HOUR_MS
    assert join(cluster, made["token"], "c1").status == 401
    assert once_token(cluster, expires_minutes=5)["expires_ms"] == NOW_MS + HOUR_MS + 300_000


def test_agent_without_a_credential_cannot_use_the_token(cluster: Cluster) -> None:
    made = once_token(cluster)
    refused = join(cluster, made["token"])
    assert refused.status == 422
    assert "newer agent" in refused.json["error"]["message"]
    assert join(cluster, made["token"], "c1").status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "user", "resource_pool": None},
        {"expires_days": 1, "expires_minutes": 1},
        {"expires_minutes": 0},
    ],
)
def test_impossible_tokens_are_refused(cluster: Cluster, fields: dict[str, Any]) -> None:
    body = {"role": "join", "resource_pool": "default", "once": True, **fields}
    assert admin(cluster, "POST", "/tokens", body).status == 422


def test_removal_revokes_all_tokens_of_the_machine(cluster: Cluster) -> None:
    made = once_token(cluster)
    session = join(cluster, made["token"], "c1").json["token"]
    admin(cluster, "POST", "/agents/gpu-1/disable", {"drain": True})
    removed = admin(cluster, "DELETE", "/agents/gpu-1")
    assert (removed.status, removed.json["state"]) == (200, "LOST")
    assert join(cluster, "c1", "c1").status == 401
    assert join(cluster, made["token"], "c1").status == 401
    body = {"epoch": 1, "call": 1, "known": []}
    path = f"{V1}/agents/gpu-1/sync"
    assert call(cluster.app, "POST", path, token=session, content=body).status == 401
    assert cluster.get("/agents").json["items"] == []
    assert admin(cluster, "DELETE", "/agents/gpu-1").status == 200
    # The name is free again, and a drained agent comes back enabled.
    assert join(cluster, once_token(cluster)["token"], "c2", installation=TWO).status == 200
    [agent] = cluster.get("/agents").json["items"]
    assert (agent["enabled"], agent["draining"]) == (True, False)


def test_agent_with_trials_is_not_removed(cluster: Cluster) -> None:
    join(cluster, once_token(cluster)["token"], "c1")
    cluster.create(
        "name: one\nentrypoint: python train.py\nhyperparameters: {}\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 10}}\n"
    )
    refused = admin(cluster, "DELETE", "/agents/gpu-1")
    assert (refused.status, refused.code) == (409, "conflict")
    assert "disable gpu-1 --drain" in refused.json["error"]["message"]


def test_upgrade_is_offered_in_syncs(cluster: Cluster) -> None:
    own = cluster_code(cluster)["sha256"]
    session = join(cluster, once_token(cluster)["token"], "c1", code="0" * 64).json["token"]

    def read_offer() -> Any:
        body = {"epoch": 1, "call": 1, "known": []}
        path = f"{V1}/agents/gpu-1/sync"
        return call(cluster.app, "POST", path, token=session, content=body).json.get("code")

    code = {"version": __version__, "sha256": own}
    assert read_offer() == {**code, "now": False}
    [agent] = cluster.get("/agents").json["items"]
    assert (agent["behind"], agent["updatable"]) == (True, True)
    assert admin(cluster, "POST", "/agents/gpu-1/upgrade").status == 200
    assert read_offer() == {**code, "now": True}
    answer = join(cluster, "c1", "c1", code=own)
    session = answer.json["token"]
    [agent] = cluster.get("/agents").json["items"]
    assert not agent["behind"]


def test_agent_without_an_installation_is_not_upgraded(cluster: Cluster) -> None:
    join(cluster, once_token(cluster)["token"], "c1")
    refused = admin(cluster, "POST", "/agents/gpu-1/upgrade")
    assert (refused.status, refused.code) == (409, "conflict")
    assert admin(cluster, "POST", "/agents/nobody/upgrade").status == 404


def test_code_is_served_under_its_digest(cluster: Cluster) -> None:
    code = cluster_code(cluster)
    token = once_token(cluster)["token"]
    path = f"{V1}/agent-code/{code['sha256']}"
    answer = call(cluster.app, "GET", path, token=token)
    assert hashlib.sha256(answer.body).hexdigest() == code["sha256"]
    assert call(cluster.app, "GET", f"{V1}/agent-code/{'0' * 64}", token=token).status == 404
    assert call(cluster.app, "GET", path, token=None).status == 401


def cluster_code(cluster: Cluster) -> dict[str, Any]:
    return dict(cluster.get("/agent-code").json)


def test_only_admins_remove_agents(cluster: Cluster) -> None:
    join(cluster, once_token(cluster)["token"], "c1")
    answer = call(cluster.app, "DELETE", f"{V1}/agents/gpu-1", token=TOKENS[Role.USER])
    assert answer.status == 403
    assert admin(cluster, "DELETE", "/agents/nobody").status == 404
