"""The rates of faults, which are sampled for each run.

A fault is absent from half of the runs, because a frequent fault can hide bugs that occur later.
Where a fault is present, small rates are more frequent than large rates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from random import Random

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The rates of the faults of a run. A rate of 0 disables the fault.

    A rate is the share of calls, triggers, table operations or starts that the fault affects. A
    rate `..._hourly` is the number of faults per hour, for each machine or for the whole cluster.
    """

    duplicates: float = 0.0
    """Calls, triggers and commits that happen twice, some of them late."""
    reordering: float = 0.0
    """Calls, triggers and answers that arrive after later ones."""
    lost_triggers: float = 0.0
    """Functions that end before they have advanced the receivers of new mail."""
    crashes: float = 0.0
    """Hosts that crash before or after a commit."""
    out_of_memory: float = 0.0
    """Folds of several rows of mail that exceed the memory. The same fold always exceeds it."""
    conflicts: float = 0.0
    """Commits that fail with a conflict although their conditions hold."""
    throttling: float = 0.0
    """Reads and commits without an answer. Some of the commits happen."""
    races: float = 0.0
    """Table operations during which other events run."""
    torn_queries: float = 0.0
    """Range queries that return rows from two different moments."""
    stale_index: float = 0.0
    """Ticks that read the index of due rows in the state of the tick before."""
    lost_calls: float = 0.0
    """Calls and answers that never arrive."""
    agent_restarts_hourly: float = 0.0
    """Restarts of an agent's process. The reports on the machine stay."""
    reboots_hourly: float = 0.0
    """Reboots of a machine. Its processes end, and its disk stays."""
    losses_hourly: float = 0.0
    """Machines that end at once, without a notice."""
    zombies_hourly: float = 0.0
    """Machines that cannot reach the API for longer than a lease."""
    notices_hourly: float = 0.0
    """Machines that end after a notice."""
    storms_hourly: float = 0.0
    """Ends of most machines of the cluster together, with or without a notice."""
    outages_hourly: float = 0.0
    """Times at which nobody reaches the API for longer than a lease, unnoticed by the tick."""
    clock_skew: float = 0.0
    """The largest error of a host's clock, as a share of CLOCK_SKEW_MS_MAX."""
    failed_starts: float = 0.0
    """Processes that an agent cannot start."""
    no_capacity: float = 0.0
    """Launches that the cloud refuses for lack of capacity."""
    dead_boots: float = 0.0
    """Instances that never boot."""
    replayed_tokens: float = 0.0
    """Launch requests that are repeated later, for the same zone and for another zone."""
    clocks_ahead: float = 0.0
    """Operations of ticks and triggers on a host whose clock is a day ahead."""
    api_outages_hourly: float = 0.0
    """Times, of up to an hour, at which the API answers nobody and the tick knows this."""
    quota_changes_hourly: float = 0.0
    """Times at which the account's quotas are only a few slots."""
    failed_batches_hourly: float = 0.0
    """Times at which no launched instance boots."""
    zone_losses_hourly: float = 0.0
    """Zones whose instances all end at once, and which then have no capacity for a while."""
    damaged_checkpoints: float = 0.0
    """Runs that find the checkpoint from which they start damaged."""
    matching_logs: float = 0.0
    """Runs with a line of the log that matches a log policy."""
    flapping_devices_hourly: float = 0.0
    """Slots whose device fails for a while, or machines whose disk is full for a while."""
    hangs: float = 0.0
    """Runs that hang before the training."""
    bad_networks_hourly: float = 0.0
    """Machines with a network that fails the checks of gangs for a while."""
    low_uses: float = 0.0
    """Nodes of runs whose slots compute too little from the start. Some of them recover."""
    failed_deliveries: float = 0.0
    """Requests of webhooks that get no answer. Some of them arrive. A run without this fault has no
    webhook.
    """


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
    matching_logs=0.3,
    flapping_devices_hourly=2.0,
    hangs=0.3,
    bad_networks_hourly=2.0,
    low_uses=0.3,
    failed_deliveries=0.5,
)
NO_FAULTS = FaultRates()
FAULT_NAMES = tuple(field.name for field in fields(FaultRates))


class UnknownFault(ValueError):
    """A name that is not the name of a fault."""


def parse_fault_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the fields of FaultRates with these names, each once, in the order of the fields.

    A name may omit `_hourly` and use `-` for `_`. Raises UnknownFault for another name.
    """
    wanted = {name.strip().replace("-", "_") for name in names}
    known = {name.removesuffix("_hourly"): name for name in FAULT_NAMES}
    if unknown := sorted(wanted.difference(known, FAULT_NAMES)):
        raise UnknownFault(f"there is no fault {unknown[0]!r:.60}; there are: {', '.join(known)}")
    fields_wanted = {known.get(name, name) for name in wanted}
    return tuple(name for name in FAULT_NAMES if name in fields_wanted)


def sample_fault_rates(random: Random, allowed: Sequence[str] = FAULT_NAMES) -> FaultRates:
    """Sample the rates of a run.

    A fault that is not allowed gets the rate 0, without a change of the other faults' rates.

    Args:
        allowed: fields of FaultRates.
    """
    values = {name: _sample_rate(random, getattr(RATES_MAX, name)) for name in FAULT_NAMES}
    return replace(NO_FAULTS, **{name: value for name, value in values.items() if name in allowed})


def _sample_rate(random: Random, rate_max: float) -> float:
    """Return a rate below `rate_max`: 0 in half of the cases, else more often small than large."""
    is_present, fraction = random.random() < 0.5, random.random()
    return rate_max * fraction * fraction if is_present else 0.0
