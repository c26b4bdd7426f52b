"""The rows of fleets: instances, launches, notices, bills and sums of usage."""

from control_plane.rows.row_type import RowType

FLEET = RowType(
    name="fleet",
    key="fleets / POOL",
    meaning="The fleet of a pool that has or had instances. Guards all other rows of the fleet.",
    record="control_plane.fleet.records:FleetRow",
    writers=("provisioner.ledger",),
    readers=(
        "provisioner.ledger",
        "fleet.rows",
        "queries.instance",
        "queries.cost",
        "agents.tick_age",
    ),
    is_mutable=True,
)
CLOUD = RowType(
    name="location",
    key="clouds / LOCATION",
    meaning="The settings of a location of instances, for the orphan cleanup.",
    record="provisioner.model:ProvisionerSettings",
    writers=("provisioner.reconcile_pass",),
    readers=("provisioner.orphan_cleanup",),
)
INSTANCE = RowType(
    name="instance",
    key="instances#POOL / INSTANCE",
    meaning="A live instance of a pool.",
    record="control_plane.fleet.records:InstanceRow",
    writers=("provisioner.ledger",),
    readers=("provisioner.ledger", "fleet.rows", "actors.cost", "agents.identity", "queries.pool"),
    is_mutable=True,
    is_passing=True,
)
PAST_INSTANCE = RowType(
    name="past instance",
    key="past-instances#POOL / ENDED.INSTANCE",
    meaning="An ended instance of a pool, by the time of the end.",
    record="control_plane.fleet.records:InstanceRow",
    writers=("provisioner.ledger",),
    readers=("fleet.rows",),
    expiry="90 days after the end, when other instances of the pool end",
)
INTENT = RowType(
    name="launch intent",
    key="intents#POOL / INTENT",
    meaning="A launch that was requested and not confirmed.",
    record="control_plane.fleet.records:IntentRow",
    writers=("provisioner.ledger",),
    readers=("provisioner.ledger", "fleet.rows", "provisioner.orphan_cleanup"),
    is_passing=True,
)
NOTICE = RowType(
    name="notice",
    key="notices / INSTANCE#KIND",
    meaning="A failed boot (`boot`), an interruption (`end`) or a recommendation (`rebalance`).",
    fields={
        "deadline_ms": "the time at which the instance ends, in epoch ms, or null",
        "boot_report": "the last lines of a failed boot",
        "reason": "why the instance ends itself; missing if the cloud ends the instance",
    },
    writers=("fleet.notices",),
    readers=("fleet.notices", "lambdas.deployed_adapters"),
    expiry="1 h after the notice",
    wakes=("tick",),
)
BILL = RowType(
    name="bill",
    key="bills#POOL / MONTH",
    meaning="The cost of ended instances on each day of a month.",
    body="JSON: micro-dollars by ISO date",
    writers=("provisioner.ledger",),
    readers=(
        "fleet.bills",
        "monitoring.cluster_metrics",
    ),
)
USAGE_DAY = RowType(
    name="usage of a day",
    key="usage-days#POOL / DAY.PART",
    meaning="The cost of the allocations that ended on a day (UTC), by experiment. Written once, "
    "a day after the end of the day.",
    record="control_plane.fleet.usage_days:DayCosts",
    body="JSON list of records; each record is a list of the fields in order",
    writers=("fleet.usage_days",),
    readers=("fleet.usage_days",),
)

ROW_TYPES = (FLEET, CLOUD, INSTANCE, PAST_INSTANCE, INTENT, NOTICE, BILL, USAGE_DAY)
