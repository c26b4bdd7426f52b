"""The scale decider, which plans a pool's launches, drains and terminations. Pure.

The rules are those of Determined 0.19's scale decider (agent_rm/provisioner/scaledecider). Limits
apply to the times that an instance may start, be idle and be disconnected. Instances are launched
for pending work, between a minimum and a maximum. The differences to Determined:

- An instance with work is never terminated. An idle or excess instance drains: its agent takes no
  new work, and the instance is terminated after the agent has no work left.
- A draining instance takes no work, but counts against the maximum. An instance with an
  interruption notice does neither, so that its replacement can start at the notice.
- Work on an instance with a notice is demand. Requests beyond a job's `max_slots` are not.
- A token bucket limits terminations, and the back-off after failures limits launches.
- A time without passes restarts all marks (draft_plan.py).
- During an outage of the API, no agent counts as silent and nothing is launched.
"""

from dataclasses import replace

from provisioner import offerings
from provisioner.disruptions import disrupt_instances
from provisioner.draft_plan import DraftPlan
from provisioner.launch_plan import plan_launches
from provisioner.model import FleetSnapshot, ScalePlan
from provisioner.observations import apply_observation


def plan_scaling(snapshot: FleetSnapshot) -> ScalePlan:
    """Return the plan of a pass: the fleet's new row, changed instances, launches and reasons.

    First apply the observations, then choose drains and terminations, then launches. The fleet's
    `waits` is the reason for too few launches, or "". The number of past launches, `launches`,
    stays. Nothing is written and no cloud is asked: the caller carries out the plan.
    """
    draft = DraftPlan(snapshot)
    for row in snapshot.rows:
        apply_observation(draft, row)
    disrupt_instances(draft)
    planned = plan_launches(draft)
    fleet = replace(
        snapshot.fleet,
        health={
            name: offering_health
            for name, offering_health in draft.health.items()
            if offering_health != offerings.FRESH
        },
        tokens=draft.tokens,
        tokens_ms=snapshot.now_ms,
        waits=planned.wait_reason,
        spare_ms=draft.spare_ms,
        outage_ms=_outage_mark(snapshot),
    )
    if not draft.tokens_used and snapshot.fleet.tokens >= draft.tokens:
        # The bucket was and is full: keep its time, so that the row need not be written again.
        # A time in the future, from a clock that was ahead, would stop the refill until then.
        fleet = replace(fleet, tokens_ms=min(snapshot.fleet.tokens_ms, snapshot.now_ms))
    changed = tuple(draft.rows[row.id] for row in snapshot.rows if draft.rows[row.id] != row)
    launch_texts = [
        f"launch {launch.count} of {launch.offering.name}" for launch in planned.launches
    ]
    reasons = [*draft.reasons, *launch_texts]
    return ScalePlan(fleet, changed, planned.launches, tuple(draft.disconnected), tuple(reasons))


def _outage_mark(snapshot: FleetSnapshot) -> int:
    """Return the fleet's new `outage_ms`: now if the API is down, else the stored time.

    A stored time in the future is replaced by now.
    """
    now_ms = snapshot.now_ms
    return now_ms if snapshot.api_down else min(snapshot.fleet.outage_ms, now_ms)
