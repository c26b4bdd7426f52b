"""`detcloud deploy verify`: refusals before anything is launched."""

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


def test_cluster_of_another_team_is_refused(detcloud: Detcloud, fake: FakeCluster) -> None:
    done = detcloud("deploy", "verify", "aws", "--team", "vision", "--yes")
    assert done.code == 1
    assert f"the cluster at {fake.url} is c, not detcloud-vision: give the team's" in done.err
    assert fake.experiments == []


def test_missing_cluster_is_named(detcloud: Detcloud) -> None:
    done = detcloud("deploy", "verify", "aws", "--team", "vision", "--yes")
    assert done.code == 1
    assert "no cluster is configured: give its address with --url" in done.err


@pytest.mark.parametrize("cost", ["-1", "x", "nan"])
def test_malformed_cost_is_refused(detcloud: Detcloud, cost: str) -> None:
    done = detcloud("deploy", "verify", "aws", "--team", "vision", f"--max-cost={cost}")
    assert done.code == 2
    assert "is not an amount in dollars" in done.err


def test_only_aws_has_the_fault_injection_service(detcloud: Detcloud) -> None:
    done = detcloud("deploy", "verify", "gcp", "--team", "vision", "--fis-role", "arn")
    assert done.code == 2
