"""Refused hyperparameters of a gang, on a real cluster on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_installed
from tests.end_to_end.refusing_model import MESSAGE, write_refusing_model
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path_factory.mktemp("refusals") / "home")
    yield one
    one.end()


def test_refusal_of_a_single_rank_ends_the_trial_without_a_failure(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    require_installed("torch")
    client = cluster.start(slots=2)
    config, model = write_refusing_model(tmp_path, {"name": "single"})
    experiment = client.create_experiment(json.loads(config.read_text()), model)

    def has_ended() -> bool:
        experiment.refresh()
        return experiment.has_ended

    wait_until(has_ended)
    [trial] = experiment.trials()
    trial = client.trial(trial.id)
    log = trial.log_chunk()["text"]
    assert log.count("comes to batch 2") == 2, log
    assert (trial.data["state"], trial.data["restarts"]) == ("COMPLETED", 0), log
    # The message is not that rank 0 lost its connection, which happened at about the same time.
    assert trial.data["message"] == MESSAGE, log
    # The searcher received no validation, and ends.
    assert (experiment.state, trial.data["metric"]) == ("COMPLETED", None), log
    assert client.overview()["resource_pools"][0]["free_slots"] == 2
