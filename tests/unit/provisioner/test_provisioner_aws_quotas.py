"""Launches on EC2 that a quota of vCPUs bounds, on the simulated one."""

import pytest

from control_plane.fleet.records import Offering
from provisioner.clouds.provider import QuotaExceeded
from tests.unit.provisioner.ec2_account import ON_DEMAND, SPOT, Account, request


@pytest.mark.parametrize(("offering", "code"), [(SPOT, "L-3819A6DF"), (ON_DEMAND, "L-DB2E81BA")])
def test_a_used_up_quota_says_which_and_where_to_raise_it(
    ec2: Account, offering: Offering, code: str
) -> None:
    ec2.region.quota = {"spot": 0, "on-demand": 0}
    with pytest.raises(QuotaExceeded) as caught:
        ec2.cloud().launch(request(offering=offering, region="us-east-1"))
    assert str(caught.value).endswith(
        f"({code}) counts vCPUs; raise it at "
        f"https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/{code}"
    )


@pytest.mark.parametrize(
    ("code", "said"),
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
def test_a_call_that_is_refused_whole_for_a_quota_says_where_it_is(
    ec2: Account, code: str, said: str
) -> None:
    ec2.region.fail("CreateFleet", code)
    with pytest.raises(QuotaExceeded, match=rf"^{code}: .*{said}"):
        ec2.cloud().launch(request(offering=SPOT, region="us-east-1"))


def test_a_quota_of_vcpus_gives_what_fits(ec2: Account) -> None:
    # 48 vCPUs each: three would be 144.
    ec2.region.quota = {"on-demand": 100}
    assert len(ec2.cloud().launch(request(count=3))) == 2
