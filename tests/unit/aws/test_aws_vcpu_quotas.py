"""EC2's vCPU quota of an instance type, by family and market."""

import pytest

from control_plane.aws.instance_types import CPU_FAMILIES, GPU_TYPES
from control_plane.aws.vcpu_quotas import quota_advice, vcpu_quota
from control_plane.fleet.records import Market

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


@pytest.mark.parametrize(
    ("name", "market", "code"),
    [
        ("g5.12xlarge", SPOT, "L-3819A6DF"),
        ("g4dn.xlarge", ON_DEMAND, "L-DB2E81BA"),
        ("gr6.4xlarge", SPOT, "L-3819A6DF"),
        ("p4d.24xlarge", SPOT, "L-7212CCBC"),
        ("p5en.48xlarge", SPOT, "L-C4BD4855"),
        ("p5.48xlarge", ON_DEMAND, "L-417A185B"),
        ("m7i-flex.large", ON_DEMAND, "L-1216C47A"),
        ("c6i.large", SPOT, "L-34B43A08"),
        ("x2idn.16xlarge", SPOT, "L-E3A00192"),
        ("trn1.2xlarge", SPOT, "L-6B0D517C"),
    ],
)
def test_quota_follows_family_and_market(name: str, market: Market, code: str) -> None:
    quota = vcpu_quota(name, market)
    assert quota is not None
    assert quota.code == code


def test_all_types_have_quotas_except_p6_on_spot() -> None:
    names = [*GPU_TYPES, *(f"{family}.large" for family in CPU_FAMILIES)]
    without = {
        (name, market) for name in names for market in Market if not vcpu_quota(name, market)
    }
    # The documentation's table of spot quotas has no row for P6.
    assert without == {(name, SPOT) for name in ("p6-b200.48xlarge", "p6-b300.48xlarge")}


def test_advice_names_the_quota_and_the_page() -> None:
    assert quota_advice("g5.12xlarge", SPOT, "eu-central-1") == (
        'the quota "All G and VT Spot Instance Requests" (L-3819A6DF) counts vCPUs; raise it at '
        "https://eu-central-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/"
        "L-3819A6DF"
    )
    assert quota_advice("quantum.large", SPOT, "eu-central-1") == ""
