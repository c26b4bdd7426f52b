"""The check of settings on AWS: problems name the setting, the value and the remedy."""

import json

import pytest

from infra.aws.settings import Network, parse_settings
from infra.stack_program import SettingsInvalid

LEAST = {
    "account": "111111111111",
    "region": "us-east-1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}


def problems(team: str = "vision", **given: str) -> list[str]:
    with pytest.raises(SettingsInvalid) as refused:
        parse_settings(team, {**LEAST, **given})
    return refused.value.problems


def test_required_settings_are_enough() -> None:
    settings = parse_settings("vision", LEAST)
    assert settings.names.cluster == "detcloud-vision"
    assert settings.zones == ("us-east-1a", "us-east-1b")
    assert (settings.architecture, settings.protect, settings.tick_concurrency) == (
        "arm64",
        True,
        2,
    )


def test_parses_all_settings() -> None:
    given = {
        "network": json.dumps({"subnets": {"us-east-1c": "subnet-1"}, "securityGroup": "sg-2"}),
        "archive": "a.zip",
        "suggestArchive": "b.zip",
        "architecture": "x86_64",
        "protect": "false",
        "logDays": "30",
        "tracing": "true",
        "requestsPerSecond": "5",
        "requestsAtOnce": "6",
        "tickConcurrency": "-1",
        "alarmEmail": "a@example.com",
        "monthlyBudget": "7",
    }
    settings = parse_settings("a-1", {**LEAST, **given})
    assert settings.network == Network({"us-east-1c": "subnet-1"}, "sg-2")
    assert (settings.requests_per_second, settings.monthly_budget) == (5, 7)
    assert settings.tracing
    assert not settings.protect


def test_deleted_checkpoints_are_kept_for_a_week_by_default() -> None:
    settings = parse_settings("vision", LEAST)
    assert (settings.deleted_checkpoint_days, settings.purges_versions) == (7, True)
    for given in ({"purgeCheckpoints": "false"}, {"deletedCheckpointDays": "0"}):
        assert not parse_settings("vision", {**LEAST, **given}).purges_versions


def test_names_missing_settings() -> None:
    with pytest.raises(SettingsInvalid) as refused:
        parse_settings("vision", {})
    names = [problem.split()[0] for problem in refused.value.problems]
    assert names == [f"detcloud:{name}" for name in LEAST]


def test_refuses_unknown_settings() -> None:
    assert problems(logdays="3")[0].startswith(
        "detcloud:logdays: unknown setting; expected one of account, region, "
    )


@pytest.mark.parametrize(
    "team", ["", "Vision", "1st", "a--b", "a-", "-a", "a" * 21, "a_b", "a/b", "a\n"]
)
def test_refuses_team_names_that_s3_does_not_allow(team: str) -> None:
    problem = problems(team)[0]
    assert problem.startswith(f"the team's name is {json.dumps(team)}: expected 1 to 20 lowercase")


WRONG = [
    ("account", "12345678901", "the 12 digits of an AWS account, in quotes"),
    ("region", "us-east-1x", "a region such as us-east-1"),
    ("region", "cn-north-1", "a region of the partition aws, such as us-east-1"),
    ("region", "us-gov-west-1", "a region of the partition aws, such as us-east-1"),
    ("region", "us-iso-east-1", "a region of the partition aws, such as us-east-1"),
    ("region", "us-isob-east-1", "a region of the partition aws, such as us-east-1"),
    ("region", "eu-isoe-west-1", "a region of the partition aws, such as us-east-1"),
    ("region", "eusc-de-east-1", "a region of the partition aws, such as us-east-1"),
    ("adminSha256", "A" * 64, "64 hexadecimal digits"),
    ("clusterConfig", "a\nb", "the path of a file"),
    ("architecture", "arm", "arm64 or x86_64"),
    ("protect", "True", "true or false"),
    ("logDays", "8", "one of 1, 3, 5, 7, 14,"),
    ("requestsPerSecond", "0", "a whole number from 1 to 10000"),
    ("requestsAtOnce", "1e3", "a whole number from 1 to 5000"),
    ("tickConcurrency", "0", "a whole number from 1 to 100"),
    ("alarmEmail", "vision", "an e-mail address"),
    ("monthlyBudget", "-1", "a whole number from 1 to"),
    ("zones", "us-east-1a", "a list of 1 to 6 different zones"),
    ("zones", '["us-east-1a", "us-east-1a"]', "a list of 1 to 6 different zones"),
    ("zones", '["us-east-2a"]', "a zone of us-east-1, as us-east-1a"),
    ("network", '{"subnets": {}, "securityGroup": "sg-1"}', '{"subnets": {ZONE:'),
    ("network", '{"subnets": {"us-east-1a": "vpc-1"}, "securityGroup": "sg-1"}', '{"subnets"'),
    ("network", '{"subnets": {"us-west-2a": "subnet-1"}, "securityGroup": "sg-1"}', "a zone of"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_wrong_setting_names_the_expected_value(name: str, value: str, expected: str) -> None:
    [problem] = problems(**{name: value})
    assert problem.startswith(f"detcloud:{name}")
    assert f": expected {expected}" in problem


@pytest.mark.parametrize("region", ["ap-southeast-5", "ca-west-1", "il-central-1", "mx-central-1"])
def test_accepts_all_regions_of_the_partition_aws(region: str) -> None:
    assert parse_settings("vision", {**LEAST, "region": region}).zones == (
        f"{region}a",
        f"{region}b",
    )


def test_reports_all_problems_together() -> None:
    messages = problems("Vision", region="here", protect="no")
    assert [problem.split(" is ")[0] for problem in messages] == [
        "the team's name",
        "detcloud:region",
        "detcloud:protect",
    ]


def test_refuses_zones_together_with_a_network() -> None:
    network = '{"subnets": {"us-east-1a": "subnet-1"}, "securityGroup": "sg-1"}'
    assert "remove it" in problems(network=network, zones='["us-east-1a"]')[0]


def test_budget_needs_an_alarm_address() -> None:
    assert problems(monthlyBudget="5") == [
        "detcloud:alarmEmail is missing: a budget needs an address to notify"
    ]
