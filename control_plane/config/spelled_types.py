"""The texts of types in the reference of configurations, for annotations without a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SPELLED_OUT: Final[Mapping[tuple[str, str], str]] = {
    ("Resources", "weight"): "number > 0",
    ("Resources", "priority"): "integer 1 to 99",
    ("Resources", "shm_size"): "bytes, or a size",
    ("Resources", "slot_memory"): "bytes, or a size",
    ("Resources", "devices"): "list of maps or strings",
    ("Device", "mode"): "letters of `rwm`",
    ("Environment", "image"): "string, or map",
    ("Environment", "environment_variables"): "list of strings, or map",
    ("Reproducibility", "experiment_seed"): "integer 0 to 2147483647",
    ("Log", "base"): "number > 0",
    ("Categorical", "vals"): "list",
    ("ClusterConfig", "resource_pools"): "list of maps",
    ("ClusterConfig", "checkpoint_endpoints"): "list of URLs",
    ("ClusterConfig", "page_origins"): "list of origins",
    ("ClusterConfig", "checkpoint_deletions_per_second"): "integer 1 to 10000",
    ("Alarms", "off"): "list of names of alarms",
    ("Alarms", "failed_boots"): "integer 1 to 1000",
    ("Alarms", "hourly_cost_factor"): "number 1 to 1000",
    ("Alarms", "hourly_cost_minimum"): "number >= 0",
    ("PoolFields", "budget"): "number > 0",
    ("PoolFields", "quiet_hours"): "list of maps",
    ("QuietHoursRule", "days"): "list of days",
    ("QuietHoursRule", "begin"): 'time such as `"22:00"`',
    ("QuietHoursRule", "end"): 'time such as `"06:00"`',
    ("QuietHoursRule", "time_zone"): "string",
    ("QuietHoursRule", "urgent_priority"): "integer 1 to 99",
    ("Scheduler", "default_priority"): "integer 1 to 99",
    ("GangCheck", "min_bandwidth"): "number > 0",
    ("LogExclusion", "policies"): "list of names of policies",
    ("TaskContainerDefaults", "devices"): "list of maps or strings",
    ("Provider", "max_instances"): "integer >= 1",
    ("Provider", "on_demand_base"): "number 0 to 1",
    ("OfferingConfig", "price_per_hour"): "number >= 0",
}
"""The texts of types by class and field."""
