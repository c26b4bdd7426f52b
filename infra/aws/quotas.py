"""The quotas of EC2 that launches of instances count against, in vCPUs.

Source: EC2 user guide, "Amazon EC2 On-Demand Instance quotas" and "Spot Instance quotas"; codes as
Service Quotas lists them for the service `ec2`.
"""

import re
from typing import NamedTuple

SERVICE = "ec2"


class Quota(NamedTuple):
    """A quota by its code, and its name in the console."""

    code: str
    name: str

    def url(self, region: str) -> str:
        """Return the page on which more can be asked for."""
        host = f"https://{region}.console.aws.amazon.com"
        return f"{host}/servicequotas/home/services/{SERVICE}/quotas/{self.code}"


_STANDARD = re.compile(r"(im|is|[acdhimrtz])\d")
_QUOTAS = {
    ("g", "on_demand"): Quota("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("g", "spot"): Quota("L-3819A6DF", "All G and VT Spot Instance Requests"),
    ("p", "on_demand"): Quota("L-417A185B", "Running On-Demand P instances"),
    ("p", "spot"): Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    ("p5", "spot"): Quota("L-C4BD4855", "All P5 Spot Instance Requests"),
    ("standard", "on_demand"): Quota(
        "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
    ),
    ("standard", "spot"): Quota(
        "L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"
    ),
}


def quota_of(instance_type: str, market: str) -> Quota | None:
    """Return the quota that a type counts against in a market, None where none is known."""
    family = instance_type.partition(".")[0]
    if re.match(r"(g|gr|vt)\d", family):
        group = "g"
    elif re.match(r"p\d", family):
        # On demand all of them have one; of the spot market's those of later ones are not known.
        generation = int(family[1])
        group = "p" if market == "on_demand" or generation < 5 else f"p{generation}"
    else:
        group = "standard" if _STANDARD.match(family) else ""
    return _QUOTAS.get((group, market))
