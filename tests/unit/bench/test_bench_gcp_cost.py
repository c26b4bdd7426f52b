"""Counts of what a cluster on Google Cloud uses, by the rules of bench/firestore_meter.py."""

from collections.abc import Sequence

import pytest

from tests.conftest import require

for package in ("mangum", "pulumi_aws", "pulumi_gcp"):
    require(package)

from bench.deployed_cost import idle_usage  # noqa: E402
from bench.firestore_meter import FirestoreMeter  # noqa: E402
from bench.gcp_cost import (  # noqa: E402
    SMALLEST,
    GcpMeteredCluster,
    list_price_dollars,
    machine_hour_usage,
    vision_stack,
)
from bench.metered_cluster import Usage  # noqa: E402
from bench.metered_table import Bill  # noqa: E402
from control_plane.state.memory import MemoryTable  # noqa: E402
from control_plane.state.table import (  # noqa: E402
    WORK_SHARDS,
    Check,
    Conflict,
    Delete,
    Expect,
    Key,
    Put,
    Write,
)


def test_documents_are_counted_whatever_their_size() -> None:
    units: list[int] = []
    reads: list[float] = []

    def count(writes: Sequence[Write], bill: Bill) -> None:
        units.append(bill.units)

    table = FirestoreMeter(MemoryTable(), count, reads.append)
    one, two = Key("p", "1"), Key("p", "2")
    table.commit((Put(one, 1, b"x" * 9_000, Expect.ABSENT), Put(two, 1, b"y", Expect.ABSENT)))
    with pytest.raises(Conflict):
        table.commit((Put(two, 2, b"y", Expect.ABSENT),))
    table.commit((Check(one, 1), Delete(two, 1)))
    # Two puts; one that failed; a check and a delete.
    assert units == [2, 1, 2]
    table.get(two)
    table.get_many((one, two))
    table.query("p", "3", "4")
    table.query("p", "0", "9", limit=1)
    table.due_keys(0, 1)
    assert table.due_shards(WORK_SHARDS, 1) == ()
    # One that is not there; two; nothing found is one; the row that is left; nothing due is one, in
    # one shard or in all.
    assert reads == [1, 2, 1, 1, 1, 1]


def test_a_request_costs_what_google_asks_for() -> None:
    used = Usage()
    used.invocations["tick"], used.calls["tick"] = 2, 80
    used.read_halves["tick"], used.writes["tick"], used.deletes["tick"] = 100, 5, 2
    assert vision_stack().gibibytes["tick"] == 0.5
    # Each ran for 0.02 s and 40 calls of 0.005 s, which is 0.3 s as they are counted, and wrote 700
    # bytes of logs. 50 reads, 3 writes, 2 deletes.
    expected = 2 * (0.4e-6 + 0.3 * (0.000024 + 0.5 * 0.0000025) + 700 * 0.5e-9)
    expected += 50 * 0.3e-6 + 3 * 0.9e-6 + 2 * 0.1e-6
    assert list_price_dollars(used) == pytest.approx(expected)


def test_a_machine_that_trains_keeps_to_its_share_of_the_bill() -> None:
    used = machine_hour_usage(machines=1)
    assert used.requests <= 330
    # The ticks are those of one machine. 0.1 % of 4.408 $.
    assert list_price_dollars(used.without("tick")) <= 0.0044


def test_an_idle_cluster_does_nothing_but_tick() -> None:
    used, minutes = idle_usage(GcpMeteredCluster, SMALLEST)
    assert dict(used.invocations) == {"tick": minutes}
    # docs/gcp.md says 25.4.
    assert used.read_units / minutes == pytest.approx(25.4, abs=0.05)
    # What has expired meanwhile is deleted, and nothing is written.
    assert used.write_units == used.deletes.total() <= 10
    assert vision_stack().conditions == 2
