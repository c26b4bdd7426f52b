"""The rates of faults: one number for each fault, sampled again for every run.

In half of the runs a fault is absent, so that bugs behind it show; where it is present, small rates
are more frequent than great ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from random import Random

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The share of calls, triggers, table operations and starts that a fault hits. `..._hourly`:
    how often an hour, for each machine or for the cluster. All are 0 in a run without faults.
    """

    # Calls, triggers and commits that come twice, some of them late.
    duplicates: float = 0.0
    # Calls, triggers and answers that come after later ones.
    reordering: float = 0.0
    # Functions that end before they have advanced the actors that they wrote to.
    lost_triggers: float = 0.0
    # Hosts that crash at a commit, before or after it.
    crashes: float = 0.0
    # Folds of several rows of mail that do not fit into memory, always the same ones.
    out_of_memory: float = 0.0
    # Commits whose conditions hold, refused because of a concurrent one.
    conflicts: float = 0.0
    # Reads and commits that get no answer; some of the commits happen.
    throttling: float = 0.0
    # Table operations with other events in their middle.
    races: float = 0.0
    # Range queries that return rows of two moments.
    torn_queries: float = 0.0
    # Ticks that see the index of due rows as it was a tick before.
    stale_index: float = 0.0
    # Calls, and answers to calls, that never arrive.
    lost_calls: float = 0.0
    # Agents' processes that restart, with the reports that are left on their machine.
    agent_restarts_hourly: float = 0.0
    # Machines that reboot: their processes are gone, their disks are not.
    reboots_hourly: float = 0.0
    # Machines that are gone at once.
    losses_hourly: float = 0.0
    # Machines partitioned from the API for longer than a lease.
    zombies_hourly: float = 0.0
    # Machines that get a notice of their end.
    notices_hourly: float = 0.0
    # Most machines of a zone end together, with a notice or without.
    storms_hourly: float = 0.0
    # Nobody reaches the API for longer than a lease, which the tick may not notice.
    outages_hourly: float = 0.0
    # Hosts' clocks differ by so many parts of CLOCK_SKEW_MS_MAX.
    clock_skew: float = 0.0
    # Trials that their machine cannot start.
    failed_starts: float = 0.0
    # Launches that a cloud refuses for lack of capacity.
    no_capacity: float = 0.0
    # Instances that never boot.
    dead_boots: float = 0.0
    # Launches that are sent again, to the same zone or to another one.
    replayed_tokens: float = 0.0
    # Passes of the provisioner on a host whose clock is a day ahead.
    clocks_ahead: float = 0.0
    # The API answers nobody for minutes, up to an hour, and the tick knows.
    api_outages_hourly: float = 0.0
    # The account's quotas are a few slots for a while.
    quota_changes_hourly: float = 0.0
    # No instance boots that is launched within a while.
    failed_batches_hourly: float = 0.0
    # All instances of a zone are gone at once, and for a while it has no others.
    zone_losses_hourly: float = 0.0
    # Runs that find the checkpoint of their trial damaged from which they begin.
    damaged_checkpoints: float = 0.0


RATES_MAX = FaultRates(
    duplicates=0.1,
    reordering=0.1,
    lost_triggers=0.3,
    crashes=0.03,
    out_of_memory=0.3,
    conflicts=0.05,
    throttling=0.04,
    races=0.1,
    torn_queries=0.1,
    stale_index=0.5,
    lost_calls=0.1,
    agent_restarts_hourly=6.0,
    reboots_hourly=1.0,
    losses_hourly=1.0,
    zombies_hourly=1.5,
    notices_hourly=1.5,
    storms_hourly=0.5,
    outages_hourly=0.5,
    clock_skew=1.0,
    failed_starts=0.1,
    no_capacity=0.7,
    dead_boots=0.3,
    replayed_tokens=0.2,
    clocks_ahead=0.02,
    api_outages_hourly=0.4,
    quota_changes_hourly=0.5,
    failed_batches_hourly=0.5,
    zone_losses_hourly=0.4,
    damaged_checkpoints=0.5,
)
NO_FAULTS = FaultRates()
FAULT_NAMES = tuple(field.name for field in fields(FaultRates))


class UnknownFault(ValueError):
    """A name that is no fault's."""


def parse_fault_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as fields of FaultRates, in their order.

    Raises:
        UnknownFault: a name is no fault's.
    """
    wanted = {name.strip().replace("-", "_") for name in names}
    known = {name.removesuffix("_hourly"): name for name in FAULT_NAMES}
    if unknown := sorted(wanted.difference(known, FAULT_NAMES)):
        raise UnknownFault(f"there is no fault {unknown[0]!r:.60}; there are: {', '.join(known)}")
    fields_wanted = {known.get(name, name) for name in wanted}
    return tuple(name for name in FAULT_NAMES if name in fields_wanted)


def sample_fault_rates(random: Random, allowed: Sequence[str] = FAULT_NAMES) -> FaultRates:
    """Sample the rates of one run. Which faults are allowed does not change the rates of others."""
    values = {name: _sample_rate(random, getattr(RATES_MAX, name)) for name in FAULT_NAMES}
    return replace(NO_FAULTS, **{name: value for name, value in values.items() if name in allowed})


def _sample_rate(random: Random, rate_max: float) -> float:
    is_present, fraction = random.random() < 0.5, random.random()
    return rate_max * fraction * fraction if is_present else 0.0
