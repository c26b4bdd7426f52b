"""How often what fails: one number for each fault, drawn anew for every run.

In half of the runs a fault is absent, so that what hides behind it shows; where it is present,
small chances are more frequent than great ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from random import Random

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Chances:
    """Of calls, triggers, table operations and starts: the share that is hit. `..._hourly`: how
    often an hour, for each machine or for the cluster. All are 0 in a run without faults.
    """

    # Calls, triggers and commits that come twice, some of them late.
    duplicates: float = 0.0
    # Calls, triggers and answers that come after later ones.
    reordering: float = 0.0
    # A function ends before it has gone on with those to whom it wrote.
    lost_triggers: float = 0.0
    # Of commits, before or after.
    crashes: float = 0.0
    # Of folds of several rows of mail, always the same ones.
    out_of_memory: float = 0.0
    # Of commits that the table refuses because of somebody else's, whose conditions hold.
    conflicts: float = 0.0
    # Reads and commits that are not answered, of which some commits happen.
    throttling: float = 0.0
    # Table operations in whose middle somebody else acts.
    races: float = 0.0
    # Range queries whose rows are of two moments.
    torn_queries: float = 0.0
    # Looks at the index of what is due that see it as it was a tick before.
    stale_index: float = 0.0
    # Calls, and answers to calls, that never arrive.
    lost_calls: float = 0.0
    # Agents' processes that start again, with what their machine still has to tell.
    agent_restarts_hourly: float = 0.0
    # Machines that start again: their processes are gone, their disks are not.
    reboots_hourly: float = 0.0
    # Machines that are gone at once.
    losses_hourly: float = 0.0
    # Machines that are cut off for longer than a lease, and come back.
    zombies_hourly: float = 0.0
    # Machines that are told when they will end.
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


MOST = Chances(
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
)
NONE = Chances()
NAMES = tuple(field.name for field in fields(Chances))


class UnknownFault(ValueError):
    """There is no fault of that name."""


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """Names of faults as they are known here, in their order.

    Raises:
        UnknownFault: for a name that is none.
    """
    given = {name.strip().replace("-", "_") for name in names}
    known = {name.removesuffix("_hourly"): name for name in NAMES}
    if unknown := sorted(given.difference(known, NAMES)):
        listed = ", ".join(known)
        raise UnknownFault(f"there is no fault {unknown[0]!r:.60}; there are: {listed}")
    wanted = {known.get(name, name) for name in given}
    return tuple(name for name in NAMES if name in wanted)


def drawn(random: Random, allowed: Sequence[str] = NAMES) -> Chances:
    """The chances of one run. Faults that are not allowed do not change those that are."""
    values = {name: _value(random, getattr(MOST, name)) for name in NAMES}
    return replace(NONE, **{name: value for name, value in values.items() if name in allowed})


def _value(random: Random, most: float) -> float:
    present, share = random.random() < 0.5, random.random()
    return most * share * share if present else 0.0
