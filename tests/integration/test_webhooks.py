"""Webhooks of a real cluster: alerts, the order of events, and a server that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.embedded_cluster import EmbeddedCluster, config
from tests.patience import wait_until
from tests.unit.webhooks.receiver import Receiver, run_receiver

pytestmark = pytest.mark.end_to_end

TRAIN = """
from detcloud import core

with core.init() as context:
    context.alert("it begins", "batch 0", level="warn")
    for operation in context.searcher.operations():
        context.train.report_validation_metrics(operation.length, {"loss": 0.5})
        operation.complete(0.5)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path / "home")
    yield one
    one.end()


def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return folder


def kinds(receiver: Receiver) -> list[tuple[str, Any]]:
    return [
        (payload["event_type"], payload["condition"].get("state"))
        for payload in receiver.accepted_payloads()
    ]


@pytest.mark.nightly
def test_events_survive_a_kill_of_the_server(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    client = cluster.start()
    allowed = "webhooks: {allowed_private_hosts: [127.0.0.1]}"
    client.put("/cluster/configuration", {"config": allowed})
    statuses = [503]
    with run_receiver(lambda number: statuses[-1]) as receiver:
        types = ("EXPERIMENT_STATE_CHANGE", "TRIAL_STATE_CHANGE", "CUSTOM", "BEST_VALIDATION")
        body = {
            "name": "hook",
            "url": receiver.url,
            "triggers": [{"type": name} for name in types],
        }
        client.post("/webhooks", body)
        experiment = client.create_experiment(config(trials=1), model(tmp_path))
        wait_until(lambda: bool(receiver.requests))
        wait_until(lambda: client.experiment(experiment.id).has_ended)
        cluster.kill()
        statuses.append(200)
        client = cluster.start()
        wait_until(lambda: len(receiver.accepted_payloads()) >= 5)
        assert kinds(receiver) == [
            ("EXPERIMENT_STATE_CHANGE", "ACTIVE"),
            ("CUSTOM", None),
            ("BEST_VALIDATION", None),
            ("TRIAL_STATE_CHANGE", "COMPLETED"),
            ("EXPERIMENT_STATE_CHANGE", "COMPLETED"),
        ]
        alert = receiver.accepted_payloads()[1]
        assert (alert["title"], alert["text"]) == ("it begins", "batch 0")
        # Only the first event was sent before the receiver accepted.
        refused = {request.payload["number"] for request in receiver.requests[:1]}
        assert refused == {1}
