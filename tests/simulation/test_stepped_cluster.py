"""Tests of the files of a stepped cluster."""

from pathlib import Path

import pytest

from simulator.stepped.stepped_cluster import SteppedCluster
from tests.simulation.scenarios import SCENARIOS


def test_cluster_with_a_table_in_memory_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # This scenario opens the object store.
    [scenario] = [scenario for scenario in SCENARIOS if scenario.name == "start-late"]
    cluster = SteppedCluster(Path(":memory:"))
    scenario.play(cluster)
    cluster.close()
    assert list(tmp_path.iterdir()) == []
