"""The choice of a pass's launches within the pool's limits, and the reason for too few. Pure."""

from typing import NamedTuple

from control_plane.fleet.records import Market
from detcloud.shared.plurals import count_text
from provisioner import offerings
from provisioner.draft_plan import DraftPlan
from provisioner.fleet_capacity import capacity_rows, counts_against_max
from provisioner.launch_limits import (
    LaunchBounds,
    MarketCounts,
    apply_on_demand_base,
    clamp_launches,
)
from provisioner.launch_need import LaunchNeed, assess_need
from provisioner.model import Demand, Launch
from provisioner.request_shapes import InstanceBounds, needs_more_room, unservable_sizes


class LaunchPlan(NamedTuple):
    """The launches of a pass."""

    launches: tuple[Launch, ...] = ()
    wait_reason: str = ""
    """Why pending work gets too few instances, for users; "" if no reason exists.

    The text may accompany launches.
    """


def plan_launches(draft: DraftPlan) -> LaunchPlan:
    """Return the launches of the pass, and why pending work gets too few instances.

    The launches serve waiting requests and the pool's minimum, within the maximum and the on-demand
    share. With a hold reason, only the minimum is launched. Jobs that can wait for spot capacity
    get no launches. Each launch of an offering that was given up, after too many failed launches,
    gets a single instance. The minimum waits while its instances would use up room that a request
    needs. The draft is unchanged, and no cloud is asked.

    Return no launches in these cases:

    - Agents cannot reach the cluster's API.
    - No offering can be launched.
    - Drains will make room for the overdue request, which has waited longer than the pool allows.
    """
    need = assess_need(draft)
    if draft.snapshot.api_down:
        # A new instance could not enrol, and would end as a failed boot.
        is_wanted = need.waiting.has_pending
        why = "the cluster's API is down, so no instance could reach it" if is_wanted else ""
        return LaunchPlan(wait_reason=why)
    least = _missing_for_minimum(draft)
    needs_on_demand = any(job.market is Market.ON_DEMAND for job in need.demand.jobs)
    if not need.order and not (needs_on_demand and need.on_demand):
        return LaunchPlan(wait_reason=_no_launch_reason(draft, need.waiting, least))
    if not need.order or need.lacks_gang or _is_minimum_in_the_way(draft, need, least):
        least = 0
    launches = _launches_within_limits(draft, need, least)
    probe_reason = offerings.probe_reason(launches, draft.health)
    why = _fewer_launches_reason(draft, need.demand, need.is_short) or probe_reason
    if not why and len(need.demand.jobs) < len(need.waiting.jobs):
        why = "waiting for spot instances, since the deadline leaves time for it"
    return LaunchPlan(offerings.limit_to_probes(launches, draft.health), why)


def _missing_for_minimum(draft: DraftPlan) -> int:
    """Return how many instances the pool lacks for the minimum; negative for a larger pool.

    Starting and running instances that accept work, and open launches, count as present.
    """
    pending = sum(count for _, count in draft.snapshot.pending)
    return draft.snapshot.settings.min_instances - len(capacity_rows(draft)) - pending


def _launches_within_limits(draft: DraftPlan, need: LaunchNeed, least: int) -> tuple[Launch, ...]:
    """Return the needed launches, raised to `least` and limited to `need.most` instances.

    The limit takes precedence. Further instances for `least` are of the best offering. Then spot
    launches move to on-demand offerings, if necessary for the pool's on-demand share. At least one
    offering must be usable.
    """
    bounds = LaunchBounds(least, need.most)
    launches = clamp_launches(need.launches, bounds, (*need.order, *need.on_demand)[0])
    counted = [row.offering for row in draft.rows.values() if counts_against_max(row)]
    pending = [offering for offering, count in draft.snapshot.pending for _ in range(count)]
    existing = [*pending, *counted]
    mix = MarketCounts(
        len(existing), sum(offering.market is Market.ON_DEMAND for offering in existing)
    )
    return apply_on_demand_base(launches, draft.snapshot.settings, need.on_demand, mix)


def _is_minimum_in_the_way(draft: DraftPlan, need: LaunchNeed, least: int) -> bool:
    """Whether `least` instances of the best offering would use up room that a request needs.

    The best offering is the first of `need.order`, which must not be empty. A request counts if
    only other sizes, also in back-off, can serve it, and if it needs more than
    `max_instances - least` instances. Present instances do not matter. False if `least` <= 0.
    """
    most = draft.snapshot.settings.max_instances
    sizes = {offering.slots for offering in draft.snapshot.offerings}
    bounds = InstanceBounds(most, most - least)
    return least > 0 and needs_more_room(need.waiting, sizes, need.order[0].slots, bounds)


def _no_launch_reason(draft: DraftPlan, demand: Demand, least: int) -> str:
    """Return why no offering can be launched now, as text for users.

    The text names each offering in back-off with the last error, or says that the pool has no
    offerings. Return "" if no request waits and the minimum is reached (`least` <= 0); with
    held-back work, return the hold reason then.
    """
    if not (demand.has_pending or least > 0):
        return demand.hold_reason if draft.snapshot.demand.has_pending else ""
    snapshot = draft.snapshot
    text = offerings.unavailability_text(snapshot.offerings, draft.health, snapshot.now_ms)
    return f"no instance can be launched: {text}" if text else "the pool has no offerings"


def _fewer_launches_reason(draft: DraftPlan, demand: Demand, capped: bool) -> str:
    """Return why pending work gets too few instances, for users, or "".

    Return only the first reason that applies, in this order: a hold reason while work is pending,
    requests that fit on no offering, and the pool's maximum if `capped` is true.
    """
    snapshot = draft.snapshot
    if demand.hold_reason and snapshot.demand.has_pending:
        return demand.hold_reason
    most = snapshot.settings.max_instances
    if large := unservable_sizes(demand, snapshot.offerings, most):
        have = ", ".join(
            f"{offering.name} with {offering.slots}" for offering in snapshot.offerings
        )
        sizes = ", ".join(map(str, large))
        instances = count_text(most, "instance")
        return f"requests for {sizes} slots do not fit into {instances} of one offering: {have}"
    if capped:
        return f"the pool has {count_text(most, 'instance')}, its maximum"
    return ""
