"""Wake-ups of the provisioner in the metered cluster."""

from pathlib import Path

import pytest

from tests.conftest import require

require("mangum")
require("pulumi_aws")

from bench.deployed_cost import SILENT, config_of  # noqa: E402
from bench.metered_cluster import MINUTE_MS, MeteredCluster  # noqa: E402
from control_plane.fleet.notices import InstanceNotice, record_notice  # noqa: E402


def notice(cluster: MeteredCluster, instance: str) -> None:
    record_notice(cluster.table, InstanceNotice(instance, cluster.now_ms + 120_000), cluster.now_ms)


@pytest.mark.nightly
def test_second_notice_waits_seconds_for_its_pass(
    tmp_path: Path,
) -> None:
    with MeteredCluster(tmp_path, SILENT) as cluster:
        cluster.submit(config_of(SILENT, 2))
        cluster.pass_time(5 * MINUTE_MS + 5_000)
        first, second = cluster.cloud.machines
        notice(cluster, first)
        cluster.pass_time(4_000)
        assert len(cluster.cloud.machines) == 3
        notice(cluster, second)
        # The stream collects records for 2 s, and passes are at least 4 s apart.
        cluster.pass_time(2_999)
        assert len(cluster.cloud.machines) == 3
        cluster.pass_time(1_001)
        assert len(cluster.cloud.machines) == 4
        assert cluster.usage.waited_ms == {"tick": 1_000}
