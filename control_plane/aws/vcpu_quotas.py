"""The quotas of EC2 for vCPUs, by instance family and market.

The codes and names are those of Service Quotas (service code `ec2`) and the same in every region.
Each quota applies to an account in a region. A new account has most of these quotas at 0.

Source: Amazon EC2 user guide, "Amazon EC2 instance type quotas", the tables of on-demand and spot
quotas. The table of spot quotas names P2 to P5 but not P6, so P6 has no spot quota here.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from control_plane.fleet.records import Market


class VcpuQuota(NamedTuple):
    """A quota in the words of Service Quotas."""

    code: str
    """The code, such as L-417A185B."""
    name: str
    """The name, such as "Running On-Demand P instances"."""


def _by_family(families: Iterable[str], code: str, name: str) -> dict[str, VcpuQuota]:
    """Return a dict with the same quota for each family."""
    return dict.fromkeys(families, VcpuQuota(code, name))


# The families of the standard quota: the letters before the generation's digit.
_STANDARD: Final = tuple("acdhimrtz")
_QUOTAS: Final = {
    Market.ON_DEMAND: {
        **_by_family(
            _STANDARD,
            "L-1216C47A",
            "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        ),
        **_by_family(("g", "gr", "vt"), "L-DB2E81BA", "Running On-Demand G and VT instances"),
        **_by_family(("p",), "L-417A185B", "Running On-Demand P instances"),
        **_by_family(("x",), "L-7295265B", "Running On-Demand X instances"),
        **_by_family(("inf",), "L-1945791B", "Running On-Demand Inf instances"),
        **_by_family(("trn",), "L-2C3B7624", "Running On-Demand Trn instances"),
    },
    Market.SPOT: {
        **_by_family(
            _STANDARD,
            "L-34B43A08",
            "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
        ),
        **_by_family(("g", "gr", "vt"), "L-3819A6DF", "All G and VT Spot Instance Requests"),
        **_by_family(("p2", "p3", "p4"), "L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
        **_by_family(("p5",), "L-C4BD4855", "All P5 Spot Instance Requests"),
        **_by_family(("x",), "L-E3A00192", "All X Spot Instance Requests"),
        **_by_family(("inf",), "L-B5D1601B", "All Inf Spot Instance Requests"),
        **_by_family(("trn",), "L-6B0D517C", "All Trn Spot Instance Requests"),
    },
}

# The beginnings of EC2's error codes that concern quotas of other services, with these services.
_OTHER_SERVICES: Final = (("Volume", "ebs"), ("MaxIOPS", "ebs"), ("NetworkInterface", "vpc"))


# The quota of VPCs in a region, which also limits internet gateways. A new account has 5 (VPC user
# guide, "Amazon VPC quotas").
VPC_QUOTA: Final = "L-F678F1CE"


def vcpu_quota(instance_type: str, market: Market) -> VcpuQuota | None:
    """Return the quota that counts the vCPUs of an instance type in a market.

    Return None for an unknown family, and for P6 on the spot market.
    """
    family = instance_type.partition(".")[0]
    letters = family[
        : next((n for n, character in enumerate(family) if character.isdigit()), len(family))
    ]
    generation = family[: len(letters) + 1]
    quotas = _QUOTAS[market]
    return quotas.get(generation) or quotas.get(letters)


def quota_advice(instance_type: str, market: Market, region: str) -> str:
    """Return the advice for users which quota to raise for an instance type, with a link.

    Return "" if `vcpu_quota` knows no quota.
    """
    quota = vcpu_quota(instance_type, market)
    if quota is None:
        return ""
    url = quota_url(quota, region)
    return f'the quota "{quota.name}" ({quota.code}) counts vCPUs; raise it at {url}'


def quota_url(quota: VcpuQuota, region: str) -> str:
    """Return the URL of the console's page on which users request an increase of a quota."""
    return f"{quotas_url('ec2', region)}/{quota.code}"


def quotas_advice(code: str, region: str) -> str:
    """Return the advice for an error about a quota other than of vCPUs, with a link.

    The link leads to the quotas of the service that EC2's error code `code` concerns: EBS, VPC, or
    else EC2. `region` may be "".
    """
    service = next((name for start, name in _OTHER_SERVICES if code.startswith(start)), "ec2")
    return f"the quotas are at {quotas_url(service, region)}"


def quotas_url(service: str, region: str) -> str:
    """Return the URL of the console's page with the quotas of a service.

    `region` may be "": then the URL names no region.
    """
    host = f"{region}.console.aws.amazon.com" if region else "console.aws.amazon.com"
    return f"https://{host}/servicequotas/home/services/{service}/quotas"
