"""Launches on the simulated EC2 that a vCPU quota limits."""

import pytest

from control_plane.fleet.records import Offering
from provisioner.clouds.provider import QuotaExceeded
from tests.unit.provisioner.ec2_account import ON_DEMAND, SPOT, Account, request


@pytest.mark.parametrize(("offering", "code"), [(SPOT, "L-3819A6DF"), (ON_DEMAND, "L-DB2E81BA")])
def test_vcpu_quota_error_names_the_quota(ec2: Account, offering: Offering, code: str) -> None:
    ec2.region.quota = {"spot": 0, "on-demand": 0}
    with pytest.raises(QuotaExceeded) as caught:
        ec2.cloud().launch(request(offering=offering, region="us-east-1"))
    assert str(caught.value).endswith(
        f"({code}) counts vCPUs; raise it at "
        f"https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{code}"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "MaxSpotInstanceCountExceeded",
            r"\(L-3819A6DF\) counts vCPUs; raise it at https://us-east-1",
        ),
        (
            "VolumeLimitExceeded",
            "quotas are at https://us-east-1.*/servicequotas/home/services/ebs/",
        ),
        ("NetworkInterfaceLimitExceeded", "/servicequotas/home/services/vpc/quotas"),
        ("MaxFleetCountExceeded", "/servicequotas/home/services/ec2/quotas"),
    ],
)
def test_quota_error_of_a_call_names_the_console_page(
    ec2: Account, code: str, message: str
) -> None:
    ec2.region.fail("CreateFleet", code)
    with pytest.raises(QuotaExceeded, match=rf"^{code}: .*{message}"):
        ec2.cloud().launch(request(offering=SPOT, region="us-east-1"))


def test_vcpu_quota_allows_a_partial_launch(ec2: Account) -> None:
    # An instance has 48 vCPUs, so three would need 144.
    ec2.region.quota = {"on-demand": 100}
    assert len(ec2.cloud().launch(request(count=3))) == 2
