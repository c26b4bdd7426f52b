"""The metrics that a cluster offers to monitoring systems. Pure.

No label has the name of an experiment, a trial, a user or an agent. The values of each label are
therefore bounded: pools by the configuration of the cluster, and all other labels by the code.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all combinations of labels."""

    name: str
    """The name in the text format. The name of a counter ends with `_total`."""
    meaning: str
    """The meaning, as a sentence for users."""
    labels: tuple[str, ...] = ()
    """The names of the labels."""
    kind: Literal["gauge", "counter"] = "gauge"


class Sample(NamedTuple):
    """A value of a metric."""

    family: Family
    labels: tuple[str, ...]
    """The value of each label, in the order of `Family.labels`."""
    value: float


INFO: Final = Family(
    "detcloud_info", "The cluster and its version; always 1.", ("cluster", "version")
)
AGENTS: Final = Family(
    "detcloud_agents",
    "The agents by state: enabled, draining, disabled or lost.",
    ("pool", "state"),
)
SLOTS: Final = Family(
    "detcloud_slots",
    "The slots of all connected agents by state: used, free or disabled.",
    ("pool", "state"),
)
POOL_STATE: Final = Family(
    "detcloud_pool_state",
    "1 for the state of the pool, and 0 for the other states: open, draining, over_budget or "
    "quiet_hours.",
    ("pool", "state"),
)
ALLOCATIONS: Final = Family(
    "detcloud_allocations",
    "The allocations of the pool by state: running, or queued for slots.",
    ("pool", "state"),
)
QUEUED_SLOTS: Final = Family(
    "detcloud_queued_slots", "The slots that the queued allocations need.", ("pool",)
)
OLDEST_WAIT: Final = Family(
    "detcloud_oldest_wait_seconds",
    "The time that the first request of a job without slots has waited; 0 if no such job waits.",
    ("pool",),
)
ALLOCATIONS_STARTED: Final = Family(
    "detcloud_allocations_started_total",
    "The allocations that the pool has ever started.",
    ("pool",),
    "counter",
)
INSTANCES: Final = Family(
    "detcloud_instances",
    "The instances by market and state: starting, active, idle, draining or terminating.",
    ("pool", "market", "state"),
)
SPENDING_RATE: Final = Family(
    "detcloud_spending_dollars_per_hour",
    "The present price per hour of all instances, in dollars.",
    ("pool", "market"),
)
COST_TODAY: Final = Family(
    "detcloud_cost_today_dollars",
    "The cost of the instances since the start of the day in UTC, in dollars.",
    ("pool",),
)
COST_MONTH: Final = Family(
    "detcloud_cost_month_dollars",
    "The cost of the instances since the start of the month in UTC, in dollars.",
    ("pool",),
)
BUDGET: Final = Family(
    "detcloud_budget_dollars", "The monthly budget of a pool with a budget, in dollars.", ("pool",)
)
PASS_AGE: Final = Family(
    "detcloud_provisioner_pass_age_seconds",
    "The time since the provisioner last looked at the instances of the pool.",
    ("pool",),
)
EXPERIMENTS: Final = Family(
    "detcloud_experiments",
    "The experiments that have not ended, by state: running, queued, waiting, paused or stopping.",
    ("pool", "kind", "state"),
)
EXPERIMENTS_SUBMITTED: Final = Family(
    "detcloud_experiments_submitted_total",
    "The experiments, commands, notebooks and shells that were ever submitted.",
    (),
    "counter",
)
RECENT_EXPERIMENTS: Final = Family(
    "detcloud_recent_experiments",
    "The ended experiments among the newest 100, by state: finished, canceled or failed.",
    ("state",),
)
TRIALS: Final = Family(
    "detcloud_trials",
    "The trials of experiments that have not ended, by state: running, queued, waiting, finished,"
    " failed or canceled.",
    ("pool", "state"),
)
ALARM_RAISED: Final = Family(
    "detcloud_alarm_raised",
    "1 for a raised alarm, and 0 for another alarm. The pool is empty for the whole cluster.",
    ("alarm", "pool"),
)
MEASURED_GPUS: Final = Family(
    "detcloud_measured_gpus",
    "The GPUs that the profilers of running trials have measured in the last five minutes.",
    ("pool",),
)
GPU_UTILIZATION: Final = Family(
    "detcloud_gpu_utilization_ratio",
    "The mean utilization of the measured GPUs, from 0 to 1.",
    ("pool",),
)
GPU_FREE_MEMORY: Final = Family(
    "detcloud_gpu_free_memory_bytes",
    "The mean free memory of the measured GPUs.",
    ("pool",),
)
LOW_USE_TRIALS: Final = Family(
    "detcloud_low_use_trials",
    "The running trials whose slots compute too little for their policy.",
    ("pool",),
)
LEFT_OUT: Final = Family(
    "detcloud_left_out",
    "The objects that the metrics leave out because of a limit: pools, experiments or GPU trials.",
    ("kind",),
)

FAMILIES: Final = (
    INFO,
    AGENTS,
    SLOTS,
    POOL_STATE,
    ALLOCATIONS,
    QUEUED_SLOTS,
    OLDEST_WAIT,
    ALLOCATIONS_STARTED,
    INSTANCES,
    SPENDING_RATE,
    COST_TODAY,
    COST_MONTH,
    BUDGET,
    PASS_AGE,
    EXPERIMENTS,
    EXPERIMENTS_SUBMITTED,
    RECENT_EXPERIMENTS,
    TRIALS,
    ALARM_RAISED,
    MEASURED_GPUS,
    GPU_UTILIZATION,
    GPU_FREE_MEMORY,
    LOW_USE_TRIALS,
    LEFT_OUT,
)
"""All metrics, in the order of the answer."""
