"""Tests of the file that names the remote accounts of a cluster on own machines."""

import json
from typing import Any

import pytest

from control_plane.config.problems import ConfigInvalid
from control_plane.config.server_clouds import check_server_clouds

AWS: dict[str, Any] = {
    "account": "111111111111",
    "region": "us-east-1",
    "subnets": {"us-east-1a": "subnet-0a"},
    "security_group": "sg-5",
}
GCP: dict[str, Any] = {"project": "acme-ml", "region": "us-central1"}
LAB: dict[str, Any] = {"name": "lab", "url": "https://lab.example.org", "aws": AWS}


def problems(fields: object) -> list[str]:
    with pytest.raises(ConfigInvalid) as refused:
        check_server_clouds(json.dumps(fields, indent=1))
    return [problem.text("clouds.yaml") for problem in refused.value.problems]


def test_accepts_either_cloud_and_reads_its_own_record() -> None:
    for given in (LAB, {**LAB, "aws": None, "gcp": GCP}, {**LAB, "gcp": GCP}):
        clouds = check_server_clouds(json.dumps(given))
        assert check_server_clouds(clouds.model_dump_json(exclude_none=True)) == clouds
    assert list(clouds.clouds) == ["aws", "gcp"]


@pytest.mark.parametrize(
    "url",
    [
        "http://lab.example.org",
        "https://",
        "https://lab.example.org/path",
        "https://ada:secret@lab.example.org",
        "https://lab.example.org:0",
        "https://lab.example.org:99999",
        "lab.example.org",
        "https://[::1",
    ],
)
def test_refuses_addresses_that_machines_in_clouds_cannot_use(url: str) -> None:
    [problem] = problems({**LAB, "url": url})
    assert problem.startswith("clouds.yaml:3: url: must be an address https://HOST")
    assert "reverse proxy" in problem


@pytest.mark.parametrize("url", ["https://lab.example.org:8443", "http://127.0.0.1:8470"])
def test_accepts_https_and_emulators_of_this_machine(url: str) -> None:
    assert check_server_clouds(json.dumps({**LAB, "url": f"{url}/"})).url == url


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**LAB, "aws": None}, "aws: is required, or gcp (--clouds none removes all clouds)"),
        ({**LAB, "name": "Lab"}, "name: must be 1 to 20 lowercase letters"),
        ({**LAB, "name": "a-"}, "name: must be 1 to 20 lowercase letters"),
        ({**LAB, "aws": {**AWS, "region": "cn-north-1"}}, "aws.region: must be a region of the"),
        ({**LAB, "aws": {**AWS, "account": 111111111111}}, "aws.account: must be a string"),
        ({**LAB, "aws": {**AWS, "subnets": {}}}, "aws.subnets: must not be empty"),
        ({**LAB, "aws": {**AWS, "securityGroup": "sg-1"}}, "(use security_group)"),
        ({**LAB, "aws": {**AWS, "principal": "lab"}}, "aws.principal: must be the ARN of an IAM"),
        (
            {**LAB, "gcp": {**GCP, "regions": ["europe-west4"] * 2}},
            "gcp.regions: must be different regions",
        ),
        ({**LAB, "gcp": {**GCP, "principal": "ada"}}, "gcp.principal: must be serviceAccount:"),
        ([LAB], "must be a map of fields"),
    ],
)
def test_names_the_place_and_the_remedy(fields: object, expected: str) -> None:
    [problem] = problems(fields)
    assert expected in problem


def test_refuses_credentials_for_checkpoints_in_two_clouds() -> None:
    role = "arn:aws:iam::111111111111:role/lab-checkpoints"
    account = "store@acme-ml.iam.gserviceaccount.com"
    aws = {**AWS, "storage_role": role}
    [problem] = problems({**LAB, "aws": aws, "gcp": {**GCP, "storage_account": account}})
    assert "gcp.storage_account: cannot be used together with aws.storage_role" in problem
