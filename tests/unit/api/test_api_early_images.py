"""The image that a new machine pulls before its first trial, in the answer to the enrolment."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.agents.trial_grants import RegistryLogin
from control_plane.config.images import DEFAULT_IMAGE
from control_plane.fleet.records import InstanceState
from control_plane.fleet.rows import encode_row, instance_key
from control_plane.state.table import Expect, Put
from tests.unit.api.agent_side import CONFIG, enrol
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster, put_instance
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_instances import (
    INSTANCE,
    ROW,
    TOKEN,
    FakeIdentityVerifier,
    prove,
)

ECR = "111111111111.dkr.ecr.eu-west-1.amazonaws.com/ml/trial:1"


class EcrGrants:
    """Grants of logins at ECR."""

    data_form = "given"

    def __init__(self) -> None:
        self.issued: list[tuple[str, str]] = []
        self.fails = False

    def gives_data_keys(self, pool: str) -> bool:
        return False

    def gives_login(self, image: str) -> bool:
        return ".dkr.ecr." in image

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        if self.fails:
            raise TimeoutError("the token service did not answer")
        self.issued.append((name, image))
        return RegistryLogin("AWS", "hush-ecr")


@pytest.fixture
def grants() -> EcrGrants:
    return EcrGrants()


@pytest.fixture
def cluster(tmp_path: Path, grants: EcrGrants) -> Cluster:
    cluster = build_cluster(
        tmp_path, verifiers={"aws": FakeIdentityVerifier()}, trial_grants=grants
    )
    put_instance(cluster, ROW, "aws")
    assert prove(cluster).status == 200
    return cluster


def submit(cluster: Cluster, image: object = None, **environment: Any) -> int:
    given = {"image": image, **environment} if image else environment
    config = f"{CONFIG}\nenvironment: {json.dumps(given)}\n"
    answer = cluster.create(config)
    assert answer.status in (200, 201), answer.body
    number: int = answer.json["id"]
    return number


def announced_image(cluster: Cluster, **fields: Any) -> str:
    """Enrol the launched machine with a GPU, and return the image in the answer."""
    image: str = announce(cluster, **fields)["image"]
    return image


def announce(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    """Enrol the launched machine with a GPU, and return the answer."""
    slots = [{"id": 0, "type": "cuda", "uuid": "u", "name": "A10G"}]
    body = {
        "name": INSTANCE,
        "resource_pool": "default",
        "slots": slots,
        "runtime": "docker",
        **fields,
    }
    answer = call(cluster.app, "POST", f"{V1}/agents", token=TOKEN, content=body)
    assert answer.status == 200, answer.body
    session: dict[str, Any] = answer.json
    return session


def request_login(cluster: Cluster, token: str, image: str, agent: str = INSTANCE) -> Answer:
    path = f"{V1}/agents/{agent}/early-image-credentials"
    return call(cluster.app, "POST", path, token=token, content={"image": image})


def test_without_jobs_no_image_is_named(cluster: Cluster) -> None:
    assert announced_image(cluster) == ""


def test_default_image_is_named_for_a_job_without_an_image(cluster: Cluster) -> None:
    submit(cluster)
    assert announced_image(cluster) == DEFAULT_IMAGE


def test_image_of_most_jobs_for_the_device_is_named(cluster: Cluster) -> None:
    submit(cluster, {"cpu": "org/cpu:1", "cuda": "org/first:1"})
    for _ in range(2):
        submit(cluster, {"cpu": "org/cpu:1", "cuda": "org/second:1"})
    assert announced_image(cluster) == "org/second:1"
    cpu = [{"id": 0, "type": "cpu", "uuid": "u", "name": "CPU"}]
    assert announced_image(cluster, slots=cpu) == "org/cpu:1"


def test_image_of_the_oldest_job_wins_a_tie(cluster: Cluster) -> None:
    for number in (1, 2, 3):
        submit(cluster, f"org/image:{number}")
    assert announced_image(cluster) == "org/image:1"


def test_only_the_first_eight_jobs_count(cluster: Cluster) -> None:
    for number in range(8):
        submit(cluster, f"org/image:{number}")
    for _ in range(3):
        submit(cluster, "org/later:1")
    assert announced_image(cluster) == "org/image:0"


def set_fields(login: dict[str, str]) -> dict[str, str]:
    """Return the fields of an answer that are not empty."""
    return {name: text for name, text in login.items() if text}


def test_machine_gets_the_login_of_the_clouds_registry(cluster: Cluster, grants: EcrGrants) -> None:
    submit(cluster, ECR)
    session = announce(cluster)
    assert (session["image"], session["image_needs_login"]) == (ECR, True)
    login = request_login(cluster, session["token"], ECR)
    assert (login.status, set_fields(login.json)) == (
        200,
        {"username": "AWS", "password": "hush-ecr"},
    )
    # A session of AWS shows the machine in the audit log.
    assert grants.issued == [(f"pull-{INSTANCE}", ECR)]


@pytest.mark.parametrize(
    ("login", "expected"),
    [
        ({"username": "u", "password": "hush"}, {"username": "u", "password": "hush"}),
        (
            {"identitytoken": "hush", "serveraddress": "registry.example"},
            {"identitytoken": "hush", "server": "registry.example"},
        ),
    ],
)
def test_machine_gets_the_configured_login(
    cluster: Cluster, login: dict[str, str], expected: dict[str, str]
) -> None:
    image = "registry.example/private:1"
    submit(cluster, image)
    submit(cluster, image, registry_auth=login)
    session = announce(cluster)
    assert (session["image"], session["image_needs_login"]) == (image, True)
    answer = request_login(cluster, session["token"], image)
    assert set_fields(answer.json) == expected


def test_login_for_another_registry_is_not_used(cluster: Cluster, grants: EcrGrants) -> None:
    other = {"username": "u", "password": "hush", "server": "ghcr.io"}
    submit(cluster, "org/public:1", registry_auth=other)
    session = announce(cluster)
    assert (session["image"], session["image_needs_login"]) == ("org/public:1", False)
    assert request_login(cluster, session["token"], "org/public:1").status == 404
    submit(cluster, ECR, registry_auth=other)
    submit(cluster, ECR)
    session = announce(cluster)
    answer = request_login(cluster, session["token"], ECR)
    assert set_fields(answer.json) == {"username": "AWS", "password": "hush-ecr"}


def test_only_the_likely_image_gets_a_login(cluster: Cluster) -> None:
    private = {"username": "u", "password": "hush"}
    for _ in range(2):
        submit(cluster, "org/first:1", registry_auth=private)
    submit(cluster, "org/second:1", registry_auth=private)
    session = announce(cluster)
    refused = request_login(cluster, session["token"], "org/second:1")
    assert (refused.status, refused.code) == (403, "forbidden")
    assert "hush" not in refused.body.decode()


def test_other_agents_get_no_login(cluster: Cluster) -> None:
    submit(cluster, ECR)
    session = announce(cluster)
    assert request_login(cluster, session["token"], ECR, "node").status == 403
    own = enrol(cluster, "node").json["token"]
    assert request_login(cluster, own, ECR).status == 403
    # An agent that the cluster did not launch gets logins for its trials only.
    refused = request_login(cluster, own, ECR, "node")
    assert (refused.status, refused.code) == (403, "forbidden")
    for role in (Role.USER, Role.JOIN):
        assert request_login(cluster, TOKENS[role], ECR).status == 403


def test_machine_that_is_not_needed_any_more_gets_no_login(cluster: Cluster) -> None:
    submit(cluster, ECR)
    session = announce(cluster)
    row = replace(ROW, state=InstanceState.TERMINATING)
    put = Put(instance_key(row), 9, encode_row(row), Expect.ANYTHING)
    cluster.services.table.commit((put,))
    assert request_login(cluster, session["token"], ECR).status == 403


def test_silent_cloud_is_told_apart_from_a_refusal(cluster: Cluster, grants: EcrGrants) -> None:
    submit(cluster, ECR)
    session = announce(cluster)
    grants.fails = True
    answer = request_login(cluster, session["token"], ECR)
    assert (answer.status, answer.code) == (503, "unavailable")


def test_jobs_for_other_agents_do_not_count(cluster: Cluster) -> None:
    cluster.create(f"{CONFIG}\nresources: {{agent_label: big}}\n")
    assert announced_image(cluster) == ""
    assert announced_image(cluster, label="big") == DEFAULT_IMAGE


@pytest.mark.parametrize("fields", [{"runtime": "process"}, {"slots": []}])
def test_machines_without_containers_or_slots_get_no_image(
    cluster: Cluster, fields: dict[str, Any]
) -> None:
    submit(cluster)
    assert announced_image(cluster, **fields) == ""


def test_agents_that_the_cluster_did_not_launch_get_no_image(cluster: Cluster) -> None:
    submit(cluster)
    assert enrol(cluster, "node").json["image"] == ""


def test_unreadable_job_does_not_refuse_the_machine(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a configuration of a newer version")

    submit(cluster)
    monkeypatch.setattr("control_plane.usecases.agent_enrolment.find_likely_image", fail)
    assert announced_image(cluster) == ""
    assert "pulls no image before its first trial" in caplog.text
