"""Settings of trials' access on AWS, and the roles of these settings."""

import json
from pathlib import Path

import pytest

from infra.aws import trial_policies
from infra.aws.names import Names
from infra.aws.settings import parse_settings
from infra.data_buckets import DataBucket
from infra.stack_program import SettingsInvalid
from tests.emulators.policy_reader import allows
from tests.unit.infra.graphs import VISION, Graph, graph

NAMES = Names("vision", "111111111111", "us-east-1")
ROLE = "arn:aws:iam::222222222222:role/curators/readers"
REPOSITORY = "222222222222.dkr.ecr.eu-west-1.amazonaws.com/ml/*"
LEAST = {
    "account": "111111111111",
    "region": "us-east-1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}
ALL = {
    "dataBuckets": '{"photos": "read", "scratch/vision/": "read-write"}',
    "taskRoles": json.dumps({"gpus": ROLE}),
    "imageRepositories": json.dumps([REPOSITORY]),
}


def test_settings_parse_buckets_and_folders() -> None:
    settings = parse_settings("vision", {**LEAST, **ALL})
    assert settings.data_buckets == (
        DataBucket("photos", "", writes=False),
        DataBucket("scratch", "vision/", writes=True),
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dataBuckets", '{"Photos": "read"}', "a map of at most 20"),
        ("dataBuckets", '{"photos": "write"}', "a map of at most 20"),
        ("dataBuckets", '{"photos/*": "read"}', "a map of at most 20"),
        ("dataBuckets", '["photos"]', "a map of at most 20"),
        ("dataBuckets", '{"detcloud-vision-objects-111111111111": "read"}', "not the cluster's"),
        ("taskRoles", '{"gpus": "readers"}', "arn:aws:iam::ACCOUNT:role/"),
        (
            "taskRoles",
            '{"gpus": "arn:aws:iam::111111111111:role/detcloud-vision-tick"}',
            "not the cluster's own",
        ),
        ("imageRepositories", '["public.ecr.aws/ml/trial"]', "a list of at most 50"),
        ("imageRepositories", f'["{REPOSITORY}:1"]', "a list of at most 50"),
    ],
)
def test_refuses_wrong_trial_settings(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsInvalid, match=expected.replace("(", r"\(")):
        parse_settings("vision", {**LEAST, name: value})


def test_trial_roles_are_limited_to_the_settings() -> None:
    settings = parse_settings("vision", {**LEAST, **ALL})
    data = trial_policies.data_access(settings.data_buckets)
    assert allows(data, "s3:GetObject", "arn:aws:s3:::photos/1")
    assert not allows(data, "s3:PutObject", "arn:aws:s3:::photos/1")
    assert allows(data, "s3:PutObject", "arn:aws:s3:::scratch/vision/1")
    assert not allows(data, "s3:GetObject", "arn:aws:s3:::scratch/visions/1")
    pulls = trial_policies.pulls(settings.image_repositories)
    images = "arn:aws:ecr:eu-west-1:222222222222:repository"
    assert allows(pulls, "ecr:BatchGetImage", f"{images}/ml/trial")
    assert not allows(pulls, "ecr:BatchGetImage", f"{images}/web/site")


def test_only_the_api_may_assume_the_trial_roles(tmp_path: Path) -> None:
    own = {f"detcloud:{name}": value for name, value in ALL.items()}
    made = graph("vision", {**VISION, **own}, tmp_path)
    roles = made.inputs_of("Role")
    assert {"data", "pull"} <= set(roles)
    [trust] = json.loads(roles["data"]["assumeRolePolicy"])["Statement"]
    assert trust["Principal"] == {"AWS": NAMES.role_arn("api")}
    api = json.loads(made.inputs_of("RolePolicy")["api"]["policy"])
    for role in (NAMES.role_arn("data"), NAMES.role_arn("pull"), ROLE):
        assert allows(api, "sts:AssumeRole", role)
    variables = made.inputs_of("Function")["api"]["environment"]["variables"]
    assert json.loads(variables["DETCLOUD_TRIAL_GRANTS"]) == {
        "data_role": "Role.data.arn",
        "pool_roles": {"gpus": ROLE},
        "pull_role": "Role.pull.arn",
        "repositories": [REPOSITORY],
    }
    tick = made.inputs_of("Function")["tick"]["environment"]["variables"]
    assert "DETCLOUD_TRIAL_GRANTS" not in tick


def test_stack_without_trial_settings_has_no_trial_roles(vision: Graph) -> None:
    assert not {"data", "pull"} & set(vision.inputs_of("Role"))
