"""The image that a new machine pulls before its first trial, in the answer to the enrolment."""

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.trial_grants import RegistryLogin
from control_plane.config.images import DEFAULT_IMAGE
from tests.unit.api.agent_side import CONFIG, enrol
from tests.unit.api.cluster import V1, Cluster, build_cluster, put_instance
from tests.unit.api.exchange import call
from tests.unit.api.test_api_instances import (
    INSTANCE,
    ROW,
    TOKEN,
    FakeIdentityVerifier,
    prove,
)

ECR = "111111111111.dkr.ecr.eu-west-1.amazonaws.com/ml/trial:1"


class EcrGrants:
    """Grants of logins at ECR, which trials get and machines do not."""

    data_form = "given"

    def gives_data_keys(self, pool: str) -> bool:
        return False

    def gives_login(self, image: str) -> bool:
        return ".dkr.ecr." in image

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        raise AssertionError("no login is issued for a guess")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = build_cluster(
        tmp_path, verifiers={"aws": FakeIdentityVerifier()}, trial_grants=EcrGrants()
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
    image: str = answer.json["image"]
    return image


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


@pytest.mark.parametrize(
    "environment",
    [
        {"image": ECR},
        {"image": "org/private:1", "registry_auth": {"username": "u", "password": "hush"}},
    ],
)
def test_image_whose_pull_needs_a_login_is_not_named(
    cluster: Cluster, environment: dict[str, Any]
) -> None:
    submit(cluster, **environment)
    assert announced_image(cluster) == ""
    submit(cluster, "org/public:1")
    assert announced_image(cluster) == "org/public:1"


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
    def fail(*_: object) -> str:
        raise ValueError("a configuration of a newer version")

    submit(cluster)
    monkeypatch.setattr("control_plane.usecases.agent_enrolment.find_likely_image", fail)
    assert announced_image(cluster) == ""
    assert "pulls no image before its first trial" in caplog.text
