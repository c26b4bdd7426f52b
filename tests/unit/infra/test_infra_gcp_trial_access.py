"""Settings of trials' access on Google Cloud, and the service accounts of these settings."""

import json
from pathlib import Path

import pytest

from control_plane.config.pools import check_cluster
from control_plane.gcp.trial_grants import AccountGrants
from infra.data_buckets import DataBucket
from infra.gcp.deployer import NEEDS
from infra.gcp.names import Names
from infra.gcp.pool_checks import find_pool_problems
from infra.gcp.settings import parse_settings
from infra.stack_program import SettingsInvalid
from tests.emulators.gcp_stack_files import POOLS
from tests.unit.infra.gcp_graphs import VISION, GcpGraph, environments, gcp_graph

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
CURATOR = "curator@acme-data.iam.gserviceaccount.com"
OWN, OTHER = "us-docker.pkg.dev/acme-ml/images", "europe-docker.pkg.dev/acme-mirror/hub"
LEAST = {
    "project": "acme-ml",
    "projectNumber": "123456789012",
    "region": "us-central1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}
ALL = {
    "dataBuckets": '{"photos": "read", "scratch/vision/": "read-write"}',
    "taskAccounts": json.dumps({"gpus": CURATOR}),
    "imageRepositories": json.dumps([OWN, OTHER]),
}


def test_settings_parse_buckets_accounts_and_repositories() -> None:
    settings = parse_settings("vision", {**LEAST, **ALL})
    assert settings.data_buckets == (
        DataBucket("photos", "", writes=False),
        DataBucket("scratch", "vision/", writes=True),
    )
    assert settings.task_accounts == {"gpus": CURATOR}
    assert settings.image_repositories == (OWN, OTHER)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dataBuckets", '{"Photos": "read"}', "a map of at most 10"),
        ("dataBuckets", '{"photos": "write"}', "a map of at most 10"),
        (
            "dataBuckets",
            json.dumps({f"b-{number}": "read" for number in range(11)}),
            "a map of at most 10",
        ),
        ("dataBuckets", '{"detcloud-vision-objects-123456789012": "read"}', "not the cluster's"),
        ("taskAccounts", '{"gpus": "readers"}', "NAME@PROJECT.iam.gserviceaccount.com"),
        (
            "taskAccounts",
            '{"gpus": "dc-vision-tick@acme-ml.iam.gserviceaccount.com"}',
            "not the cluster's own",
        ),
        ("imageRepositories", '["gcr.io/acme-ml/trial"]', "LOCATION-docker.pkg.dev/PROJECT/"),
        ("imageRepositories", f'["{OWN}/trial"]', "LOCATION-docker.pkg.dev/PROJECT/REPOSITORY"),
        ("imageRepositories", f'"{OWN}"', "a list of at most 50"),
    ],
)
def test_refuses_wrong_gcp_trial_settings(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsInvalid, match=expected):
        parse_settings("vision", {**LEAST, name: value})


def test_refuses_a_task_account_for_an_unknown_pool() -> None:
    settings = parse_settings("vision", {**LEAST, **ALL})
    pools = [pool.pool_name for pool in check_cluster(POOLS).resource_pools]
    assert "gpus" not in pools
    assert find_pool_problems(settings, check_cluster(POOLS)) == [
        "detcloud:taskAccounts gives an account to the trials of gpus: expected a pool of "
        f"pools.yaml, which has {', '.join(pools)}"
    ]


def test_only_the_api_issues_tokens_of_the_trial_accounts(
    tmp_path: Path,
) -> None:
    own = {f"detcloud:{name}": value for name, value in ALL.items()}
    made = gcp_graph("vision", {**VISION, **own}, tmp_path)
    accounts = made.inputs_of("serviceaccount/account")
    assert (accounts["data"]["accountId"], accounts["pull"]["accountId"]) == (
        "dc-vision-data",
        "dc-vision-pull",
    )
    tokens = {
        (item["member"], item["serviceAccountId"])
        for item in made.inputs_of("serviceaccount/iAMMember").values()
        if item["role"] == "IAMCustomRole.issue_tokens.name"
    }
    assert tokens == {
        ("Account.api.member", f"Account.{word}.name") for word in ("storage", "data", "pull")
    }
    # The project's policy has these grants, so that no bucket's policy is read or changed.
    grants = {
        item["condition"]["expression"]: item["role"]
        for item in made.inputs_of("projects/iAMMember").values()
        if item["member"] == "Account.data.member"
    }
    assert grants == {
        'resource.name == "projects/_/buckets/photos" || '
        'resource.name.startsWith("projects/_/buckets/photos/objects/")': (
            "IAMCustomRole.read_data.name"
        ),
        'resource.name == "projects/_/buckets/scratch" || '
        'resource.name.startsWith("projects/_/buckets/scratch/objects/vision/")': (
            "IAMCustomRole.write_data.name"
        ),
    }
    # The owner of a repository in a different project grants access.
    pulls = [
        (item["location"], item["repository"], item["project"])
        for item in made.inputs_of("artifactregistry/repositoryIamMember").values()
        if item["member"] == "Account.pull.member"
    ]
    assert pulls == [("us", "images", "acme-ml")]
    assert {
        resource.type for resource in made.resources if resource.type.startswith("gcp:")
    } <= set(NEEDS)


def test_api_knows_the_trial_grants(tmp_path: Path) -> None:
    own = {f"detcloud:{name}": value for name, value in ALL.items()}
    variables = environments(gcp_graph("vision", {**VISION, **own}, tmp_path))
    variable = json.loads(variables["api"]["DETCLOUD_TRIAL_GRANTS"])
    assert variable == {
        "data_account": NAMES.email("data"),
        "data_places": [["photos", "", False], ["scratch", "vision", True]],
        "pool_accounts": {"gpus": CURATOR},
        "pull_account": NAMES.email("pull"),
        "repositories": [OWN, OTHER],
    }
    grants = AccountGrants(None, **variable)  # type: ignore[arg-type]
    assert grants.gives_data_keys("any")
    assert grants.gives_login(f"{OTHER}/ml/trial:1")
    assert not grants.gives_login("us-docker.pkg.dev/acme-ml/other/trial:1")
    assert "DETCLOUD_TRIAL_GRANTS" not in variables["tick"]


def test_stack_without_trial_settings_has_no_trial_accounts(gcp_vision: GcpGraph) -> None:
    assert not {"data", "pull"} & set(gcp_vision.inputs_of("serviceaccount/account"))
    assert "DETCLOUD_TRIAL_GRANTS" not in environments(gcp_vision)["api"]
