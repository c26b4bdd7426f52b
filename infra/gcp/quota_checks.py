"""The judgement of quotas against what the pools may want: GPUs, boot disks and public addresses.

Quotas of processors are left out: which of them counts a machine type, Google does not tell.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from control_plane.gcp.accelerator_quotas import ALL_REGIONS, PREEMPTIBLE, quota_url
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact
from infra.gcp.account_facts import PoolFacts
from infra.gcp.purchases import Purchase

ADDRESSES: Final = "IN_USE_ADDRESSES"
# By the kind of disk. Those of other kinds are in no list of a region.
_DISK_QUOTAS: Final = {
    "pd-standard": "DISKS_TOTAL_GB",
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
}


class Demand(NamedTuple):
    """The demand of a pool on a quota: `amount` of `unit` for each instance."""

    pool: str
    machine_type: str
    amount: int
    instances_max: int
    unit: str


def judge_quotas(project: str, purchases: list[Purchase], facts: PoolFacts) -> Iterator[Finding]:
    """Yield a finding for each quota: whether it is enough for one instance, and for the pools."""
    for (region, metric), those in _demands(purchases).items():
        subject = f"quota {metric}" + (f" in {region}" if region else "")
        limits = facts.quotas.get(region, Unknown("compute.regions.get", "not asked"))
        yield from read_fact(limits, subject, partial(_quota, project, subject, those, metric))


def _demands(purchases: list[Purchase]) -> dict[tuple[str, str], list[Demand]]:
    """Return the demands by the region and the metric of their quota, GPUs first."""
    gpus: dict[tuple[str, str], list[Demand]] = {}
    others: dict[tuple[str, str], list[Demand]] = {}
    for it in purchases:
        if it.gpus:
            demand = Demand(it.pool, it.machine_type, it.gpus, it.instances_max, "GPUs")
            gpus.setdefault((it.region, it.metric), []).append(demand)
            gpus.setdefault(("", ALL_REGIONS), []).append(demand)
        if metric := _DISK_QUOTAS.get(it.disk_type):
            demand = Demand(it.pool, it.machine_type, it.disk_gb, it.instances_max, "GB of disks")
            others.setdefault((it.region, metric), []).append(demand)
        if it.has_address:
            demand = Demand(it.pool, it.machine_type, 1, it.instances_max, "public addresses")
            others.setdefault((it.region, ADDRESSES), []).append(demand)
    return gpus | others


def _quota(
    project: str,
    subject: str,
    those: list[Demand],
    metric: str,
    limits: Mapping[str, float],
) -> Iterator[Finding]:
    limit = limits.get(metric)
    standard = metric.removeprefix(PREEMPTIBLE)
    smallest = min(it.amount for it in those)
    if limit == 0 and standard != metric and limits.get(standard, 0) >= smallest:
        # Google does not tell whether any was ever asked for, which would end this.
        text = (
            f"0 GPUs, so that spot instances count against {standard}, of which there are "
            f"{limits[standard]:g}; where any of {metric} was requested before, there are none"
        )
        remedy = f"request {metric} at {quota_url(project)}"
        yield Finding(Level.WARNING, subject, text, remedy)
    else:
        yield _compare(project, subject, those, limit)


def _compare(project: str, subject: str, those: list[Demand], limit: float | None) -> Finding:
    remedy = f"request an increase at {quota_url(project)}"
    if limit is None:
        text = "Compute Engine does not list it with the region's quotas"
        return Finding(Level.WARNING, subject, text, f"look at {quota_url(project)}")
    wanted = {it.pool: 0 for it in those}
    for it in those:
        wanted[it.pool] = max(wanted[it.pool], it.amount * it.instances_max)
    smallest = min(those, key=lambda it: it.amount)
    known = f"{limit:g} {smallest.unit}"
    if limit < smallest.amount:
        text = f"{known}, and one {smallest.machine_type} has {smallest.amount}"
        return Finding(Level.ERROR, subject, text, remedy)
    too_large = sorted({it.machine_type for it in those if it.amount > limit})
    if too_large:
        text = f"{known}, too few for one {', '.join(too_large)}"
        return Finding(Level.WARNING, subject, text, remedy)
    total, pools = sum(wanted.values()), ", ".join(wanted)
    if limit < total:
        text = f"{known}, and the pools {pools} may want {total}"
        return Finding(Level.WARNING, subject, text, remedy)
    return fine_finding(subject, f"{known}, enough for the {total} of {pools}")
