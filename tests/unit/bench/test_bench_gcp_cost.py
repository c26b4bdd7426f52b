"""Usage of a cluster on Google Cloud, counted by the rules in bench/firestore_meter.py."""

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


def test_operations_count_per_document_of_any_size() -> None:
    units: list[int] = []
    reads: list[float] = []

    def count(writes: Sequence[Write], bill: Bill) -> None:
        units.append(bill.units)

    table = FirestoreMeter(MemoryTable(), count, reads.append)
    first, second = Key("p", "1"), Key("p", "2")
    table.commit((Put(first, 1, b"x" * 9_000, Expect.ABSENT), Put(second, 1, b"y", Expect.ABSENT)))
    with pytest.raises(Conflict):
        table.commit((Put(second, 2, b"y", Expect.ABSENT),))
    table.commit((Check(first, 1), Delete(second, 1)))
    # Two puts, a failed put, and a check with a delete.
    assert units == [2, 1, 2]
    table.get(second)
    table.get_many((first, second))
    table.query("p", "3", "4")
    table.query("p", "0", "9", limit=1)
    table.due_keys(0, 1)
    assert table.due_shards(WORK_SHARDS, 1) == ()
    # In order: a missing row, two rows, an empty range, the remaining row, no due row in a shard,
    # no due row in all shards.
    assert reads == [1, 2, 1, 1, 1, 1]


def test_request_cost_matches_list_prices() -> None:
    used = Usage()
    used.invocations["tick"], used.calls["tick"] = 2, 80
    used.read_halves["tick"], used.writes["tick"], used.deletes["tick"] = 100, 5, 2
    assert vision_stack().gibibytes["tick"] == 0.5
    # Each ran for 0.02 s and 40 calls of 0.005 s, billed as 0.3 s, and wrote 700 bytes of logs.
    # 50 reads, 3 writes, 2 deletes.
    expected = 2 * (0.4e-6 + 0.3 * (0.000024 + 0.5 * 0.0000025) + 700 * 0.5e-9)
    expected += 50 * 0.3e-6 + 3 * 0.9e-6 + 2 * 0.1e-6
    assert list_price_dollars(used) == pytest.approx(expected)


def test_control_plane_of_a_training_machine_is_within_the_cost_limit() -> None:
    used = machine_hour_usage(machines=1)
    assert used.requests <= 330
    # All ticks would count for the single machine. The limit is 0.1 % of $4.408.
    assert list_price_dollars(used.without("tick")) <= 0.0044


def test_idle_cluster_invokes_only_the_tick() -> None:
    used, minutes = idle_usage(GcpMeteredCluster, SMALLEST)
    assert dict(used.invocations) == {"tick": minutes}
    # The value in docs/gcp.md.
    assert used.read_units / minutes == pytest.approx(27.0, abs=0.05)
    # The only writes delete expired rows.
    assert used.write_units == used.deletes.total() <= 10
    assert (vision_stack().conditions, vision_stack().metric_conditions) == (2, 1)
