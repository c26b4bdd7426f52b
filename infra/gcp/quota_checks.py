"""Checks of a project's quotas of GPUs, vCPUs, boot disks and public addresses. Pure."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from control_plane.fleet.records import Market
from control_plane.gcp.accelerator_quotas import ALL_REGIONS, PREEMPTIBLE, quota_url
from control_plane.gcp.cpu_quotas import ALL_REGIONS_CPUS, FAMILY_CPUS, cpu_metric
from control_plane.gcp.machine_types import find_machine_type
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact
from infra.gcp.account_facts import PoolFacts
from infra.gcp.purchases import Purchase

ADDRESSES: Final = "IN_USE_ADDRESSES"
VCPUS: Final = "vCPUs"
# The quota of each type of disk. A region lists no quotas of other types.
_DISK_QUOTAS: Final = {
    "pd-standard": "DISKS_TOTAL_GB",
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
}


class Demand(NamedTuple):
    """The demand of a pool's offering on a quota."""

    pool: str
    """The name of the pool."""
    machine_type: str
    """The name of the machine type, for messages."""
    amount: int
    """The demand of an instance, in `unit`."""
    instances_max: int
    """The maximum number of instances of the pool."""
    unit: str
    """The counted thing in plural, like `GPUs`."""
    standard: str = ""
    """The on-demand quota that can count spot instances instead; empty for none."""


def check_quotas(project: str, purchases: list[Purchase], facts: PoolFacts) -> Iterator[Finding]:
    """Yield a finding for each quota that the purchases count against.

    - An error: the quota is below the smallest instance. For vCPUs, this is a warning.
    - A warning: the quota is below another instance or the pools' maximum, unlisted or Unknown.
      Also a spot quota of 0 whose instances count against an on-demand quota.
    - A fine finding: the quota suffices.
    - No finding: the quota of vCPUs over all regions is unlisted.
    """
    for (region, metric), demands in _demands(purchases, facts).items():
        subject = f"quota {metric}" + (f" in {region}" if region else "")
        limits = facts.quotas.get(region, Unknown("compute.regions.get", "not asked"))
        if metric == ALL_REGIONS_CPUS and not isinstance(limits, Unknown) and metric not in limits:
            # Not every project has a quota of vCPUs over all regions.
            continue
        yield from read_fact(limits, subject, partial(_quota, project, subject, demands, metric))


def _demands(purchases: list[Purchase], facts: PoolFacts) -> dict[tuple[str, str], list[Demand]]:
    """Return the demands on each quota, by (region, metric), GPUs first.

    The region is "" for quotas over all regions. Unknown vCPUs cause no demand.
    """
    gpus: dict[tuple[str, str], list[Demand]] = {}
    others: dict[tuple[str, str], list[Demand]] = {}
    for purchase in purchases:
        if purchase.gpus:
            standard = purchase.metric.removeprefix(PREEMPTIBLE)
            demand = Demand(
                purchase.pool,
                purchase.machine_type,
                purchase.gpus,
                purchase.instances_max,
                "GPUs",
                standard,
            )
            gpus.setdefault((purchase.region, purchase.metric), []).append(demand)
            gpus.setdefault(("", ALL_REGIONS), []).append(demand)
        if vcpus := _vcpus(purchase, facts):
            standard = cpu_metric(purchase.machine_type, Market.ON_DEMAND)
            demand = Demand(
                purchase.pool, purchase.machine_type, vcpus, purchase.instances_max, VCPUS, standard
            )
            place = (purchase.region, cpu_metric(purchase.machine_type, purchase.market))
            others.setdefault(place, []).append(demand)
            if purchase.market is Market.ON_DEMAND:
                others.setdefault(("", ALL_REGIONS_CPUS), []).append(demand)
        if metric := _DISK_QUOTAS.get(purchase.disk_type):
            demand = Demand(
                purchase.pool,
                purchase.machine_type,
                purchase.disk_gb,
                purchase.instances_max,
                "GB of disks",
            )
            others.setdefault((purchase.region, metric), []).append(demand)
        if purchase.has_address:
            demand = Demand(
                purchase.pool, purchase.machine_type, 1, purchase.instances_max, "public addresses"
            )
            others.setdefault((purchase.region, ADDRESSES), []).append(demand)
    return gpus | others


def _vcpus(purchase: Purchase, facts: PoolFacts) -> int:
    """Return the vCPUs of an instance, or 0 if neither Compute Engine nor the name tells.

    Another check reports unknown types.
    """
    if not isinstance(facts.types, Unknown):
        found = facts.types.get((purchase.region, purchase.machine_type))
        if found is not None:
            return found.vcpus
    known = find_machine_type(purchase.machine_type)
    return known.vcpus if known else 0


def _quota(
    project: str,
    subject: str,
    demands: list[Demand],
    metric: str,
    limits: Mapping[str, float],
) -> Iterator[Finding]:
    """Yield the finding about the quota `metric`, against which the demands count.

    A warning if a spot quota is 0 and the instances count against an on-demand quota instead;
    otherwise the finding of `_compare`. `limits` has the most that may be used of each metric.
    """
    limit = limits.get(metric)
    instead = _standards(demands, limits) if limit == 0 and metric.startswith(PREEMPTIBLE) else []
    if instead:
        # Google does not report whether the project ever requested a spot quota. After a request,
        # spot instances no longer count against the on-demand quota.
        text = (
            f"0 {demands[0].unit}, so that spot instances count against "
            f"{' and '.join(instead)}; projects that ever requested {metric} get no spot instances"
        )
        remedy = f"request {metric} at {quota_url(project)}"
        yield Finding(Level.WARNING, subject, text, remedy)
    else:
        yield _compare(project, subject, demands, limit)


def _standards(demands: list[Demand], limits: Mapping[str, float]) -> list[str]:
    """Return a text for each on-demand quota that can count spot instances.

    Spot instances count against an on-demand quota if the spot quota is 0 and was never requested.
    The text, part of a sentence for users, is the quota's name with the limit. Leave out quotas
    that are too small for an instance and quotas that `limits` lacks. The quota FAMILY_CPUS is
    included also without a limit, because Google lists no values of this quota. Return [] if no
    quota remains.

    Args:
        demands: the demands of the offerings on the spot quota. `standard` names the on-demand
            quota.
        limits: the limit of each quota by name.
    """
    found = {}
    for demand in demands:
        if demand.standard not in limits:
            if demand.standard == FAMILY_CPUS:
                found[demand.standard] = f"{demand.standard}, which Google does not list here"
        elif limits[demand.standard] >= demand.amount:
            found[demand.standard] = f"{demand.standard}, which is {limits[demand.standard]:g}"
    return list(found.values())


def _compare(project: str, subject: str, demands: list[Demand], limit: float | None) -> Finding:
    """Return the finding about a quota of which at most `limit` may be used.

    `limit` is None for an unlisted quota.

    An error: the quota is below the smallest instance, a warning for vCPUs. A warning: an instance
    or the pools' maximum does not fit, or the quota is unlisted. Otherwise a fine finding.
    """
    remedy = f"request an increase at {quota_url(project)}"
    if limit is None and subject.startswith(f"quota {FAMILY_CPUS}"):
        types = ", ".join(sorted({demand.machine_type for demand in demands}))
        text = f"unknown: Compute Engine lists no quota for the vCPUs of {types}"
        return Finding(Level.WARNING, subject, text, f"look at {quota_url(project)}")
    if limit is None:
        text = "Compute Engine does not list it with the region's quotas"
        return Finding(Level.WARNING, subject, text, f"look at {quota_url(project)}")
    wanted = {demand.pool: 0 for demand in demands}
    for demand in demands:
        wanted[demand.pool] = max(wanted[demand.pool], demand.amount * demand.instances_max)
    smallest = min(demands, key=lambda item: item.amount)
    known = f"{limit:g} {smallest.unit}"
    if limit < smallest.amount:
        text = f"{known}, and one {smallest.machine_type} has {smallest.amount}"
        # Google does not document for all series which quota counts the vCPUs. A wrong guess must
        # not prevent a deployment.
        level = Level.WARNING if smallest.unit == VCPUS else Level.ERROR
        return Finding(level, subject, text, remedy)
    too_large = sorted({demand.machine_type for demand in demands if demand.amount > limit})
    if too_large:
        text = f"{known}, too few for one {', '.join(too_large)}"
        return Finding(Level.WARNING, subject, text, remedy)
    total, pools = sum(wanted.values()), ", ".join(wanted)
    if limit < total:
        text = f"{known}, and the pools {pools} may want {total}"
        return Finding(Level.WARNING, subject, text, remedy)
    return fine_finding(subject, f"{known}, enough for the {total} of {pools}")
