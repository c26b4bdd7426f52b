"""Costs of a deployed cluster at list prices: a trial's life, a steady agent, a thousand machines,
and an idle cluster.

metered_cluster.py counts usage in virtual time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, at_most, progress, row_without_target
from bench.metered_cluster import MeteredCluster, Usage
from bench.talking_agent import TrialScript
from control_plane.actors.records import Status
from control_plane.aws.instance_types import GPU_TYPES, on_demand_price
from infra.aws import prices
from infra.aws.functions import SIZES

# Maximal percent of the machines' bill, by type and trials per machine.
SHARES_MAX = (("g4dn.xlarge", 1, 1.2), ("g5.12xlarge", 1, 0.15), ("g5.12xlarge", 4, 0.2))
SMALLEST = "g4dn.xlarge"
IDLE_DOLLARS_MAX = 1.0
TICKS_PER_DAY = 1440
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MACHINES = 1_000
# Machines with counted usage. A machine's share of the ticks is larger here than with a thousand.
MACHINES_COUNTED = 4
# The typical spot price as a share of the price on demand.
SPOT_SHARE = 0.4
# A warm call's own time, and the time of each call to the table.
OWN_SECONDS, TABLE_SECONDS = 0.02, 0.005
# Bytes of a function's line, of Lambda's three lines per invocation, and of the gateway's line per
# request.
LINE_BYTES, LAMBDA_BYTES, GATEWAY_BYTES = 400, 330, 300
# DynamoDB uses the key of a table every five minutes.
KEY_USES_PER_MONTH = prices.HOURS_PER_MONTH * 12
STORED_GB = 0.01
# Metrics that functions of a busy cluster report, see lambdas/. Each is paid for by the hour.
METRICS_TOLD = 5

LIFE = TrialScript(validations=10, validation_ms=10_000, talk_ms=0)
SILENT = TrialScript(validations=1, validation_ms=100 * HOUR_MS, talk_ms=0)
BUSY = TrialScript(validations=10, validation_ms=360_000, talk_ms=10_000)


def costs(scale: Scale) -> Iterator[Row]:
    """A life, an hour of an agent, and the share of the bill."""
    with progress("a trial's life"):
        used = life()
    yield from _rows("a trial's life of 10 validations", used)
    with progress("an agent-hour"):
        used = steady_agent_usage(scale.agent_minutes)
    hours = 60 / scale.agent_minutes
    yield from _rows("an hour of an agent whose trial says nothing", used, hours)
    # The cheapest machine with a GPU comes first, because the control plane's share is largest.
    for instance_type, trials, percent_max in SHARES_MAX:
        yield from _share(instance_type, trials, percent_max)


def idle_cost(scale: Scale) -> Iterator[Row]:
    """Measure a cluster that has nothing to do after its first experiment."""
    with progress("an idle cluster"):
        used, minutes = idle_usage()
    a_day = TICKS_PER_DAY / minutes
    invocations = used.invocations.total() * a_day
    beside = ", ".join(f"{name} {count * a_day:,.0f}" for name, count in used.invocations.items())
    yield at_most("invocations a day, idle", invocations, TICKS_PER_DAY, "calls", beside=beside)
    ticks = list_price_dollars(used) * 60 / minutes * prices.HOURS_PER_MONTH
    kept = alarms_and_keys()
    table = KEY_USES_PER_MONTH * prices.KEY_USE + STORED_GB * prices.STORED_GB
    beside = f"alarms and keys {kept:.2f}, ticks {ticks:.2f}, what is stored {table:.2f} $"
    total = ticks + kept + table
    yield at_most("dollars a month, idle", total, IDLE_DOLLARS_MAX, "$", beside=beside)
    yield row_without_target("read units of a tick, idle", used.read_units / minutes, "units")


def life() -> Usage:
    """Return the usage of a trial from its submission to an existing machine until the agent
    forgets the trial, without ticks.
    """
    with metered_cluster(LIFE) as cluster:
        experiment_usage(cluster, 1)
        return experiment_usage(cluster, 1).without("tick")


def steady_agent_usage(minutes: int) -> Usage:
    """Return the usage of an agent with a running trial, without ticks."""
    with metered_cluster(SILENT) as cluster:
        cluster.submit(config_of(SILENT, 1))
        cluster.pass_time(5 * MINUTE_MS)
        return cluster.pass_time(minutes * MINUTE_MS).without("tick")


def machine_hour_usage(instance_type: str, trials: int, machines: int = MACHINES_COUNTED) -> Usage:
    """Return the usage of an hour of machines with `trials` trials each, ticks included.

    Each trial has ten validations. A single trial has all slots of a machine.
    """
    slots = GPU_TYPES[instance_type].gpus
    with metered_cluster(BUSY, instance_type, slots) as cluster:
        return experiment_usage(cluster, machines * trials, slots // trials)


def idle_usage(
    kind: type[MeteredCluster] = MeteredCluster, instance_type: str = SMALLEST
) -> tuple[Usage, int]:
    """Return the usage of an idle cluster, long after its work, and the number of minutes."""
    minutes = 60
    with metered_cluster(LIFE, instance_type, kind=kind) as cluster:
        experiment_usage(cluster, 1)
        # By then the machine has ended.
        cluster.pass_time(HOUR_MS)
        return cluster.pass_time(minutes * MINUTE_MS), minutes


def list_price_dollars(used: Usage) -> float:
    """The price of usage at list prices."""
    total = used.requests * (prices.API_REQUEST + GATEWAY_BYTES * prices.LOG_GB / 1e9)
    total += used.write_units * prices.WRITE_UNIT + used.read_units * prices.READ_UNIT
    total += used.puts * prices.OBJECT_PUT
    for function, invocations in used.invocations.items():
        seconds = OWN_SECONDS * invocations + TABLE_SECONDS * used.calls[function]
        seconds += used.waited_ms[function] / 1000
        gigabytes = SIZES[function].memory_mb / 1024
        lines = invocations * (LINE_BYTES + LAMBDA_BYTES) / 1e9
        total += invocations * prices.INVOCATION + seconds * gigabytes * prices.GB_SECOND
        total += lines * prices.LOG_GB
    return total


def alarms_and_keys() -> float:
    """Return the dollars a month for alarms and keys of a team's stack."""
    from tests.unit.infra.graphs import VISION, alarm_metrics, graph

    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        stack = graph("vision", VISION, Path(folder) / "stack")
    return alarm_metrics(stack) * prices.ALARM_METRIC + len(stack.inputs_of("Key")) * prices.KEY


def config_of(course: TrialScript, trials: int, slots: int = 1) -> str:
    """Return the configuration of an experiment with `trials` parallel trials."""
    return f"""
name: bench
entrypoint: python train.py
resources: {{slots_per_trial: {slots}}}
searcher: {{name: random, metric: loss, max_length: {{batches: {course.length}}},
  max_trials: {trials}, max_concurrent_trials: {trials}}}
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
"""


@contextmanager
def metered_cluster(
    course: TrialScript,
    instance_type: str = SMALLEST,
    slots: int = 1,
    kind: type[MeteredCluster] = MeteredCluster,
) -> Iterator[MeteredCluster]:
    """Open a cluster of `kind` with trials that follow `course` on machines of a type."""
    with (
        TemporaryDirectory(prefix="detcloud-bench-") as folder,
        kind(Path(folder), course, instance_type, slots) as cluster,
    ):
        yield cluster


def experiment_usage(cluster: MeteredCluster, trials: int, slots: int = 1) -> Usage:
    """Run an experiment until agents have forgotten its trials, and return the usage. Raise
    RuntimeError if the experiment does not complete.
    """
    before = cluster.usage.copy()
    number = cluster.submit(config_of(cluster.course, trials, slots))

    def is_over() -> bool:
        is_empty = not any(agent.runs for agent in cluster.agents.values())
        return is_empty and cluster.status(number).is_final

    cluster.pass_time(3 * HOUR_MS, is_over)
    if (status := cluster.status(number)) is not Status.COMPLETED:
        raise RuntimeError(f"experiment {number} is {status}")
    return cluster.usage - before


def _rows(what: str, used: Usage, times: float = 1.0) -> Iterator[Row]:
    calls = {name: count * times for name, count in used.invocations.items() if name != "api"}
    beside = ", ".join(f"{name} {count:.0f}" for name, count in calls.items())
    invoked = f"invocations: {beside}" if beside else ""
    yield row_without_target(f"{what}: requests", used.requests * times, "requests", beside=invoked)
    yield row_without_target(f"{what}: write units", used.write_units * times, "units")
    yield row_without_target(f"{what}: read units", used.read_units * times, "units")
    yield row_without_target(
        f"{what}: list price", 1e3 * list_price_dollars(used) * times, "$ a thousand"
    )


def _share(instance_type: str, trials: int, target: float) -> Iterator[Row]:
    with progress(f"{MACHINES_COUNTED} busy {instance_type}, {trials} at once on each"):
        used = machine_hour_usage(instance_type, trials)
    each = list_price_dollars(used) / MACHINES_COUNTED
    spot = SPOT_SHARE * on_demand_price(instance_type)
    kind = "one trial" if trials == 1 else f"{trials} trials"
    what = f"control plane of {MACHINES:,} spot {instance_type} with {kind} each"
    metrics = METRICS_TOLD * prices.CUSTOM_METRIC / prices.HOURS_PER_MONTH
    hourly = MACHINES * each + metrics
    percent = 100 * hourly / (MACHINES * spot)
    beside = f"{hourly:,.2f} of {MACHINES * spot:,.0f} $ an hour"
    yield at_most(what, percent, target, "% of the bill", beside=beside)
