"""The tokens that an enrolment tries, and the address that it sends."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.credential import Credential
from detcloud.agent.sync.enrolment import AgentIdentity, EnrolmentSender
from detcloud.shared.http import ApiError, Unreachable

IDENTITY = AgentIdentity("gpu-1", "default", [], "1", "", "10.0.0.1")


class Cluster:
    """A cluster that accepts enrolments with `valid` tokens, and makes their credentials valid."""

    def __init__(self, *valid: str) -> None:
        self.valid = {digest_of(token) for token in valid}
        self.tried: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.loses_answers = False
        self.makes_credentials = True

    def open(self, url: str, token: str | None) -> Any:
        assert token is not None
        return Caller(self, token)


class Caller:
    def __init__(self, cluster: Cluster, token: str) -> None:
        self.cluster, self.token = cluster, token

    def request(self, method: str, path: str, body: dict[str, Any], *, retry: bool) -> Any:
        cluster = self.cluster
        cluster.tried.append(self.token)
        cluster.bodies.append(body)
        if digest_of(self.token) not in cluster.valid:
            raise ApiError(401, "unauthenticated", "unknown token")
        if cluster.makes_credentials:
            cluster.valid = {body["credential_sha256"]}
        if cluster.loses_answers:
            raise Unreachable("cut off")
        return {"agent_id": "gpu-1", "credential": cluster.makes_credentials}

    def close(self) -> None:
        """Do nothing."""


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def sender(cluster: Cluster, folder: Path, join_token: str = "", days: int = 0) -> EnrolmentSender:
    made = EnrolmentSender("http://x", join_token, IDENTITY, cluster.open)
    now_ms = days * 24 * 3600 * 1000
    made.credential = Credential(folder / "credential.json", None, lambda: now_ms)
    return made


def test_join_token_is_used_once(tmp_path: Path) -> None:
    cluster = Cluster("join")
    sender(cluster, tmp_path, "join").send()
    sender(cluster, tmp_path).send()
    assert cluster.tried[0] == "join"
    assert len(cluster.tried) == 2


def test_lost_answer_is_repeated_with_the_new_credential(tmp_path: Path) -> None:
    cluster = Cluster("join")
    cluster.loses_answers = True
    with pytest.raises(Unreachable):
        sender(cluster, tmp_path, "join").send()
    cluster.loses_answers = False
    # The join token is not valid any more.
    sender(cluster, tmp_path, "join").send()
    assert cluster.tried[:2] == ["join", "join"]
    assert digest_of(cluster.tried[2]) in cluster.valid


def test_lost_answer_to_a_replacement_locks_nobody_out(tmp_path: Path) -> None:
    cluster = Cluster("join")
    sender(cluster, tmp_path, "join").send()
    cluster.loses_answers = True
    with pytest.raises(Unreachable):
        sender(cluster, tmp_path, days=8).send()
    cluster.loses_answers = False
    sender(cluster, tmp_path, days=9).send()
    sender(cluster, tmp_path, days=9).send()


def test_restored_cluster_knows_a_former_credential(tmp_path: Path) -> None:
    cluster = Cluster("join")
    sender(cluster, tmp_path, "join").send()
    backup = set(cluster.valid)
    sender(cluster, tmp_path, days=8).send()
    cluster.valid = backup
    sender(cluster, tmp_path, days=9).send()
    assert len(cluster.valid) == 1


def test_new_join_token_replaces_a_revoked_credential(tmp_path: Path) -> None:
    cluster = Cluster("join")
    sender(cluster, tmp_path, "join").send()
    revoked = cluster.valid
    cluster.valid = {digest_of("second")}
    with pytest.raises(ApiError):
        sender(cluster, tmp_path).send()
    sender(cluster, tmp_path, "second").send()
    assert cluster.valid.isdisjoint(revoked)


def test_join_token_of_a_pool_stays_in_use(tmp_path: Path) -> None:
    cluster = Cluster("join")
    cluster.makes_credentials = False
    for _ in range(2):
        sender(cluster, tmp_path, "join").send()
    assert cluster.tried == ["join", "join"]


def test_present_address_is_sent(tmp_path: Path) -> None:
    cluster = Cluster("join")
    made = sender(cluster, tmp_path, "join")
    addresses = iter(["10.0.0.1", "127.0.0.1", "10.0.0.7", "10.0.0.7", "10.0.0.7"])
    made.find_address = lambda: next(addresses)
    made.send()
    # Without a route, the address is unknown.
    assert [made.has_moved() for _ in range(2)] == [False, True]
    made.send()
    assert not made.has_moved()
    assert [body["address"] for body in cluster.bodies] == ["10.0.0.1", "10.0.0.7"]


def test_enrolment_names_the_only_user_of_trials(tmp_path: Path) -> None:
    cluster = Cluster("join")
    made = EnrolmentSender(
        "http://x", "join", replace(IDENTITY, only_user="1000:1000"), cluster.open
    )
    made.credential = Credential(tmp_path / "credential.json", None, lambda: 0)
    made.send()
    assert cluster.bodies[0]["only_user"] == "1000:1000"
