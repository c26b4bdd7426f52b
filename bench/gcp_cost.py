"""Costs of a cluster on Google Cloud at list prices: a thousand machines, and an idle cluster.

Usage is counted in virtual time by Google's rules. Each event is a separate request to a function.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.deployed_cost import (
    BUSY,
    LINE_BYTES,
    MACHINES,
    MACHINES_COUNTED,
    OWN_SECONDS,
    TABLE_SECONDS,
    TICKS_PER_DAY,
    experiment_usage,
    idle_usage,
    metered_cluster,
)
from bench.figures import Row, Scale, at_most, progress, row_without_target
from bench.firestore_meter import FirestoreMeter
from bench.metered_cluster import MINUTE_MS, MeteredCluster, Usage
from control_plane.fleet.records import Market
from infra.gcp import prices
from lambdas.aws.stream import advance_receivers, key_of
from lambdas.tick_steps import run_steps
from provisioner.clouds.gcp.price_list import PriceTable
from tests.unit.infra.gcp_graphs import VISION, gcp_graph

TYPE, SLOTS, REGION = "a2-highgpu-4g", 4, "us-central1"
SMALLEST = "g2-standard-4"
# Eventarc repeats a rejected early event after this time at the earliest.
RETRY_MS = 10_000
# Bytes of Cloud Run's log entry of a request.
REQUEST_BYTES = 300
# Of the two images of functions.
IMAGES_GB = 0.3
# Of a GiB.
_MEMORY_UNITS = {"Gi": 1, "Mi": 1024}
# Maximal percent of the machines' bill, and maximal dollars of an idle month.
SHARE_MAX_PERCENT, IDLE_DOLLARS_MAX = 0.2, 1.0


class GcpMeteredCluster(MeteredCluster):
    """A cluster with usage that is counted like Google's bill."""

    provider, zone = "gcp", "us-central1-a"
    meter = FirestoreMeter
    gather_ms = 0

    def _deliver(self, name: str) -> None:
        """Call a function for each record.

        A function first reads the row of the event; deleted rows need no work. Events of the tick
        share a pass.
        """
        records = self._streams[name].clear_batch()
        for record in records:
            with self._running(name):
                self._read(1)
                if name == "advance" and self.table.table.get(key_of(record)) is not None:
                    engine = self._functions[name].engine
                    if advance_receivers(engine, [record], lambda: MINUTE_MS).failed:
                        raise RuntimeError("a record failed")
        if name == "tick":
            before, self._function = self._function, name
            steps = self._steps.row_steps([key_of(record).partition for record in records])
            again_ms = run_steps(steps, self.now_ms, lambda: MINUTE_MS)
            self._function = before
            if again_ms:
                due_ms = self.now_ms + max(again_ms, RETRY_MS)
                self._streams[name].take_again(records, due_ms)


def gcp_costs(scale: Scale) -> Iterator[Row]:
    """The share of the bill of a thousand machines, and a month without work."""
    with progress(f"{MACHINES_COUNTED} busy {TYPE} of Google Cloud"):
        used = machine_hour_usage()
    each = list_price_dollars(used) / MACHINES_COUNTED
    spot = PriceTable().instance_hour(TYPE, Market.SPOT, REGION)
    what = f"control plane of {MACHINES:,} spot {TYPE} with one trial each, Google Cloud"
    beside = f"{MACHINES * each:,.2f} of {MACHINES * spot:,.0f} $ an hour"
    yield at_most(what, 100 * each / spot, SHARE_MAX_PERCENT, "% of the bill", beside=beside)
    with progress("an idle cluster of Google Cloud"):
        used, minutes = idle_usage(GcpMeteredCluster, SMALLEST)
    invocations = used.invocations.total() * TICKS_PER_DAY / minutes
    yield row_without_target("invocations a day, idle, Google Cloud", invocations, "calls")
    ticks = list_price_dollars(used) * 60 / minutes * prices.HOURS_PER_MONTH
    stack = vision_stack()
    alarms = stack.conditions * prices.ALARM_CONDITION
    # Each condition about a metric reads a single sum.
    alarms += stack.metric_conditions * prices.SERIES_READS_PER_MONTH * prices.SERIES_READ
    rest = prices.SCHEDULER_JOB + IMAGES_GB * prices.IMAGE_GB
    beside = f"ticks {ticks:.2f}, alarms {alarms:.2f}, the minute's job and images {rest:.2f} $"
    total = ticks + alarms + rest
    yield at_most(
        "dollars a month, idle, Google Cloud", total, IDLE_DOLLARS_MAX, "$", beside=beside
    )
    what = "documents that a tick reads, idle, Google Cloud"
    yield row_without_target(what, used.read_units / minutes, "documents")


def machine_hour_usage(machines: int = MACHINES_COUNTED) -> Usage:
    """Return the usage of an hour of machines with a trial each, with ten validations and the
    ticks.
    """
    with metered_cluster(BUSY, TYPE, SLOTS, GcpMeteredCluster) as cluster:
        return experiment_usage(cluster, machines, SLOTS)


def list_price_dollars(used: Usage) -> float:
    """Return the price of usage at list prices. Each request counts as alone on an instance."""
    deletes = used.deletes.total()
    total = (used.write_units - deletes) * prices.WRITE + deletes * prices.DELETE
    total += used.read_units * prices.READ + used.puts * prices.OBJECT_PUT
    for function, invocations in used.invocations.items():
        seconds = OWN_SECONDS + TABLE_SECONDS * used.calls[function] / invocations
        billed = ceil(seconds / prices.SECONDS_MIN) * prices.SECONDS_MIN
        rate = prices.VCPU_SECOND + vision_stack().gibibytes[function] * prices.GIB_SECOND
        lines = (LINE_BYTES + REQUEST_BYTES) / 1e9 * prices.LOG_GB
        total += invocations * (prices.REQUEST + billed * rate + lines)
    return total


@dataclass(frozen=True)
class StackSizes:
    """The sizes of a stack: the memory of each function and the number of alarm conditions."""

    gibibytes: Mapping[str, float]
    conditions: int
    metric_conditions: int
    """The number of alarm conditions about metrics, not about logs."""


@cache
def vision_stack() -> StackSizes:
    """Return the sizes of a team's stack from the stack's program."""
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        found = gcp_graph("vision", VISION, Path(folder) / "stack")
    memories = {
        name: item["template"]["containers"][0]["resources"]["limits"]["memory"]
        for name, item in found.inputs_of("cloudrunv2/service").items()
    }
    alarms = found.inputs_of("monitoring/alertPolicy").values()
    conditions = [condition for alarm in alarms for condition in alarm["conditions"]]
    return StackSizes(
        {name: int(memory[:-2]) / _MEMORY_UNITS[memory[-2:]] for name, memory in memories.items()},
        len(conditions),
        sum("conditionThreshold" in condition for condition in conditions),
    )
