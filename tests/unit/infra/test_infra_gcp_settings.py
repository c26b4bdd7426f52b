"""The check of settings on Google Cloud: problems name the setting, the value and the remedy."""

import json

import pytest

from infra.gcp.settings import Network, parse_settings
from infra.stack_program import SettingsInvalid
from tests.unit.infra.gcp_graphs import KEY

LEAST = {
    "project": "acme-ml",
    "projectNumber": "123456789012",
    "region": "us-central1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}


def problems(team: str = "vision", **given: str) -> list[str]:
    with pytest.raises(SettingsInvalid) as refused:
        parse_settings(team, {**LEAST, **given})
    return refused.value.problems


def test_required_settings_are_enough_on_gcp() -> None:
    settings = parse_settings("vision", LEAST)
    assert settings.names.cluster == "detcloud-vision"
    assert settings.subnetwork_regions == ("us-central1",)
    assert (settings.protect, settings.api_instances, settings.api_concurrency) == (True, 20, 40)


def test_parses_all_gcp_settings() -> None:
    settings = parse_settings(
        "a-1",
        {
            **LEAST,
            "network": '{"network": "n", "subnetworks": {"us-central1": "s"}, "tags": ["t"]}',
            "archive": "a.tar.gz",
            "image": f"us-docker.pkg.dev/p/r/i@sha256:{'e' * 64}",
            "suggestImage": f"us-docker.pkg.dev/p/r/s@sha256:{'e' * 64}",
            "protect": "false",
            "apiInstances": "3",
            "apiConcurrency": "4",
            "alarmEmail": "a@example.com",
            "monthlyBudget": "7",
            "billingAccount": "01AB23-45CD67-89EF01",
            "kmsKey": KEY,
            "labels": '{"cost-center": "42"}',
        },
    )
    assert settings.network == Network(network="n", subnetworks={"us-central1": "s"}, tags=("t",))
    assert settings.subnetwork_regions == ("us-central1",)
    assert (settings.protect, settings.api_instances, settings.monthly_budget) == (False, 3, 7)
    assert settings.labels == {"cost-center": "42"}


def test_names_missing_gcp_settings() -> None:
    with pytest.raises(SettingsInvalid) as refused:
        parse_settings("vision", {})
    names = [problem.split()[0] for problem in refused.value.problems]
    assert names == [f"detcloud:{name}" for name in LEAST]


def test_refuses_unknown_gcp_settings() -> None:
    assert problems(apiinstances="3")[0].startswith(
        "detcloud:apiinstances: unknown setting; expected one of project, projectNumber, "
    )
    # The team's name is not a setting.
    assert "unknown setting" in problems(team_="x")[0]


@pytest.mark.parametrize("team", ["", "Vision", "1st", "a--b", "a-", "a" * 21, "a_b", "a\n"])
def test_refuses_team_names_that_google_does_not_allow(team: str) -> None:
    problem = problems(team)[0]
    assert problem.startswith(f"the team's name is {json.dumps(team)}: expected 1 to 20 lowercase")


WRONG = [
    ("project", "Acme", "the id of a project"),
    ("project", "short", "the id of a project"),
    ("projectNumber", "acme-ml", "the project's number"),
    ("region", "us-central1-a", "a region such as us-central1"),
    ("region", "us-central1\n", "a region such as us-central1"),
    ("adminSha256", "A" * 64, "64 hexadecimal digits"),
    ("clusterConfig", "a\nb", "the path of a file"),
    ("regions", "us-central1", "a list of 1 to 16 different regions"),
    ("regions", "[]", "a list of 1 to 16 different regions"),
    ("regions", '["us-central1", "us-central1"]', "a list of 1 to 16 different regions"),
    ("network", '{"network": "n"}', '{"network": NAME'),
    ("network", '{"network": "n", "subnetworks": {}}', '{"network": NAME'),
    ("network", '{"network": "N", "subnetworks": {"us-west1": "s"}}', '{"network": NAME'),
    ("network", '{"network": "n", "subnetworks": {"us-west1": "s"}, "x": 1}', '{"network": NAME'),
    ("image", "us-docker.pkg.dev/p/r/i:latest", "an image by its digest"),
    ("protect", "perhaps", "true or false"),
    ("apiInstances", "0", "a whole number from 1 to 1000"),
    ("apiConcurrency", "1001", "a whole number from 1 to 1000"),
    ("alarmEmail", "vision", "an e-mail address"),
    ("monthlyBudget", "-1", "a whole number from 1 to"),
    ("billingAccount", "1234", "the id of a billing account"),
    ("kmsKey", "projects/p/locations/l/keyRings/r", "a key, projects/PROJECT/"),
    ("labels", '{"detcloud-cluster": "x"}', "a map of at most 20 labels"),
    ("labels", '{"Key": "x"}', "a map of at most 20 labels"),
    ("labels", '{"key": "Value"}', "a map of at most 20 labels"),
    ("privateSubnets", "1.5", "true or false"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_wrong_gcp_setting_names_the_expected_value(name: str, value: str, expected: str) -> None:
    [problem] = problems(**{name: value})
    assert problem.startswith(f"detcloud:{name} is ")
    assert f": expected {expected}" in problem


NETWORK = '{"network": "n", "subnetworks": {"us-west1": "s"}}'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"network": NETWORK, "regions": '["us-west1"]'},
            "detcloud:regions is for the stack's own",
        ),
        ({"network": NETWORK, "privateSubnets": "true"}, "detcloud:privateSubnets is for the"),
        ({"billingAccount": "01AB23-45CD67-89EF01"}, "must be set together"),
        ({"image": f"a/b@sha256:{'e' * 64}"}, "must be set together"),
        (
            {"monthlyBudget": "5", "billingAccount": "01AB23-45CD67-89EF01"},
            "detcloud:alarmEmail is missing",
        ),
        ({"kmsKey": KEY.replace("us-central1", "europe-west4")}, "expected a key in us-central1"),
        # A key encrypts only disks of the key's region.
        (
            {"kmsKey": KEY, "regions": '["us-central1", "us-west1"]'},
            "detcloud:regions has us-west1: expected us-central1 alone, where detcloud:kmsKey is",
        ),
        (
            {"kmsKey": KEY, "network": NETWORK},
            "detcloud:network has us-west1: expected us-central1 alone, where detcloud:kmsKey is",
        ),
    ],
)
def test_refuses_contradictory_settings(given: dict[str, str], expected: str) -> None:
    [problem] = problems(**given)
    assert expected in problem


def test_reports_all_gcp_problems_together() -> None:
    messages = problems("Vision", region="here", protect="no")
    assert [problem.split(" is ")[0] for problem in messages] == [
        "the team's name",
        "detcloud:region",
        "detcloud:protect",
    ]
