"""Scrapes of a test's cluster, and instances of its pools."""

import re

from control_plane.access.principals import Role
from control_plane.fleet.bills import bills_partition, encode_bill, utc_day
from control_plane.fleet.records import (
    FleetRow,
    InstanceRow,
    InstanceState,
    Market,
    Offering,
)
from control_plane.fleet.rows import FLEETS, encode_row, instance_key
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.cluster import NOW_MS, TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

HOUR_MS = 3_600_000
SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$")


def scrape(cluster: Cluster, accept: str = "", token: str = TOKENS[Role.METRICS]) -> Answer:
    headers = [("accept", accept)] if accept else []
    return call(cluster.app, "GET", f"{V1}/metrics", token=token, headers=headers)


def read_samples(cluster: Cluster) -> dict[str, float]:
    """Return the value of each sample by name and sorted labels, such as `up{pool="default"}`."""
    answer = scrape(cluster)
    assert answer.status == 200, answer.body
    samples = {}
    for line in answer.body.decode().splitlines():
        if not line.startswith("#"):
            found = SAMPLE.match(line)
            assert found, line
            labels = f"{{{found[2]}}}" if found[2] else ""
            samples[found[1] + labels] = float(found[3])
    return samples


def pass_cache(cluster: Cluster) -> None:
    """Move the clock past the time for which samples are kept."""
    cluster.clock.ms += 15_000


def put_row(cluster: Cluster, key: Key, body: bytes) -> None:
    cluster.services.table.commit((Put(key, 1, body, Expect.ANYTHING),))


def put_instance(
    cluster: Cluster,
    name: str,
    state: InstanceState,
    market: Market = Market.SPOT,
    price: float = 2.0,
    idle_ms: int | None = None,
) -> None:
    """Store an instance of the pool `default` that was launched an hour ago."""
    offering = Offering("gpu", "g5.xlarge", "a", market, 1, price)
    launched_ms = NOW_MS - HOUR_MS
    row = InstanceRow(name, "default", offering, state, launched_ms, "i", idle_ms=idle_ms)
    put_row(cluster, instance_key(row), encode_row(row))


def put_fleet(cluster: Cluster, passed_ms: int) -> None:
    row = FleetRow("default", passed_ms=passed_ms)
    put_row(cluster, Key(FLEETS, "default"), encode_row(row))


def put_bill(cluster: Cluster, micros: int) -> None:
    """Store the cost of ended instances of the pool `default` on the day of the clock."""
    day = utc_day(NOW_MS)
    key = Key(bills_partition("default"), day.isoformat()[:7])
    put_row(cluster, key, encode_bill({day: micros}))
