"""Metadata of trials and checkpoints, with and without conflicting writers."""

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


@pytest.mark.parametrize("conflicts", [0, 1])
def test_values_are_merged_into_the_latest_metadata(
    conflicts: int, ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    trial, checkpoint = ended_cluster.trials[0], {"uuid": "1234abcd", "trial_id": 1}
    ended_cluster.checkpoints.append(checkpoint)
    names = {"trial": trial["id"], "checkpoint": checkpoint["uuid"]}
    for noun, item in (("trial", trial), ("checkpoint", checkpoint)):
        item.update(metadata={"old": 1}, metadata_revision="a")
        ended_cluster.metadata.conflicts = conflicts
        done = detcloud(noun, "set", "metadata", str(names[noun]), "data.version=3")
        text = f"the metadata of {noun} {names[noun]} was set\n"
        assert (done.code, done.out) == (0, text)
        before = {"theirs": 1} if conflicts else {"old": 1}
        assert item["metadata"] == {**before, "data": {"version": 3}}


def test_removing_unknown_key_adds_nothing(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.trials[0].update(metadata={}, metadata_revision="a")
    assert detcloud("trial", "set", "metadata", "1", "a.b=").code == 0
    assert ended_cluster.trials[0]["metadata"] == {}


def test_repeated_conflicts_are_an_error(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.trials[0].update(metadata={}, metadata_revision="a")
    ended_cluster.metadata.refuses_all = True
    done = detcloud("trial", "set", "metadata", "1", "a=1")
    assert (done.code, done.out) == (3, "")
    assert "was changed in the meantime" in done.err
