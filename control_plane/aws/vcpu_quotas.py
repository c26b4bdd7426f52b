"""The quotas of vCPUs that EC2 counts instances against, by family and market.

Codes and names are those of Service Quotas (service code `ec2`), the same in every region; each
quota holds for one account in one region, and a new account begins with 0 of most of them.

Source: Amazon EC2 user guide, "Amazon EC2 instance type quotas", its tables of on-demand and spot
quotas. Its table of spot quotas names P2 to P5 and no P6, so that none is told for those.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from control_plane.fleet.records import Market


class VcpuQuota(NamedTuple):
    """A quota as Service Quotas names it."""

    code: str
    name: str


def _by_family(families: Iterable[str], code: str, name: str) -> dict[str, VcpuQuota]:
    return dict.fromkeys(families, VcpuQuota(code, name))


# A family is counted by the letters before its generation.
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

# Codes of EC2's errors that begin so are about quotas of other services.
_OTHER_SERVICES: Final = (("Volume", "ebs"), ("MaxIOPS", "ebs"), ("NetworkInterface", "vpc"))


# Of the networks in a region, and with them of internet gateways (VPC user guide, "Amazon VPC
# quotas"): 5 at first.
VPC_QUOTA: Final = "L-F678F1CE"


def vcpu_quota(instance_type: str, market: Market) -> VcpuQuota | None:
    """The quota that instances of a type count against in a market; None for an unknown family."""
    family = instance_type.partition(".")[0]
    letters = family[
        : next((n for n, character in enumerate(family) if character.isdigit()), len(family))
    ]
    generation = family[: len(letters) + 1]
    quotas = _QUOTAS[market]
    return quotas.get(generation) or quotas.get(letters)


def quota_advice(instance_type: str, market: Market, region: str) -> str:
    """Which quota to raise for a type, and where; "" for an unknown family."""
    quota = vcpu_quota(instance_type, market)
    if quota is None:
        return ""
    url = quota_url(quota, region)
    return f'the quota "{quota.name}" ({quota.code}) counts vCPUs; raise it at {url}'


def quota_url(quota: VcpuQuota, region: str) -> str:
    """The page of the console on which more of a quota is asked for."""
    return f"{quotas_url('ec2', region)}/{quota.code}"


def quotas_advice(code: str, region: str) -> str:
    """The advice for a quota that is none of vCPUs: the console's page of those that EC2 means with
    an error's code.
    """
    service = next((name for start, name in _OTHER_SERVICES if code.startswith(start)), "ec2")
    return f"the quotas are at {quotas_url(service, region)}"


def quotas_url(service: str, region: str) -> str:
    """The page of the console with the quotas of a service."""
    host = f"{region}.console.aws.amazon.com" if region else "console.aws.amazon.com"
    return f"https://{host}/servicequotas/home/services/{service}/quotas"
