"""Default zones of a stack: zones that offer an instance type of the pools."""

from collections.abc import Iterator

import pytest

from control_plane.config.pools import check_cluster
from infra.aws.pool_checks import pool_types
from infra.aws.zones import default_zones, find_zones
from tests.unit.provisioner.ec2_account import Account, open_account

REGION = "us-east-1"
A, B, C = f"{REGION}a", f"{REGION}b", f"{REGION}c"
POOLS = """
resource_pools:
  - pool_name: default
  - pool_name: gpus
    provider: {type: aws, instance_type: g5.xlarge}
  - pool_name: more
    provider:
      type: aws
      offerings: [{instance_type: p5.48xlarge}, {instance_type: g5.xlarge, market: spot}]
"""


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    with open_account() as opened:
        yield opened


def test_pool_types_come_from_offerings_or_the_pool() -> None:
    assert pool_types(check_cluster(POOLS)) == {"g5.xlarge", "p5.48xlarge"}


def test_zones_offer_at_least_a_single_type(account: Account) -> None:
    account.reset()
    account.region.not_offered = {("p5.48xlarge", A), ("p5.48xlarge", B), ("g5.xlarge", B)}
    assert find_zones(account.api, REGION, ["g5.xlarge", "p5.48xlarge"]) == (A, C)
    assert find_zones(account.api, REGION, ["p5.48xlarge"]) == (C,)


def test_at_most_six_zones_are_chosen_by_offered_types(account: Account) -> None:
    zones = tuple(f"{REGION}{letter}" for letter in "abcdefg")
    account.reset(zones=(*zones, "us-east-1-bos-1a"))
    account.region.not_offered = {("p5.48xlarge", zones[2])}
    chosen = find_zones(account.api, REGION, ["g5.xlarge", "p5.48xlarge"])
    assert chosen == (*zones[:2], *zones[3:])


def test_default_zones_are_empty_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    # Pulumi reports the missing credentials.
    assert default_zones(REGION, {"g5.xlarge"}) == ((), "")
    assert default_zones(REGION, ()) == ((), "")


def test_refused_zone_query_returns_the_reason(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.reset()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", account.url)
    assert default_zones(REGION, {"g5.xlarge"}) == ((A, B, C), "")
    account.region.fail("DescribeInstanceTypeOfferings", "UnauthorizedOperation", "No.")
    zones, why = default_zones(REGION, {"g5.xlarge"})
    assert zones == ()
    assert why.startswith("EC2 does not say which zones offer g5.xlarge: ")
