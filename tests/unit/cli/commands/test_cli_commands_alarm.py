"""`detcloud alarm list`."""

import json

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

ALARM = {
    "alarm": "queue-wait",
    "pool": "gpus",
    "text": "job 7 has waited for slots for 2 h 5 min",
    "raised_ms": 1_764_000_000_000,
    "runbook": "docs/runbook/queue-wait.md",
}


def test_lists_alarms(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.alarms = [ALARM, {**ALARM, "alarm": "lag", "pool": ""}]
    lines = detcloud("alarm", "list", "--csv").out.splitlines()
    assert lines[0] == "Alarm,Resource pool,Raised,Found,Runbook"
    assert lines[1].startswith("queue-wait,gpus,")
    assert lines[2].startswith("lag,N/A,")
    assert json.loads(detcloud("alarm", "list", "--json").out)[0] == ALARM


def test_without_alarms_only_titles(fake: FakeCluster, detcloud: Detcloud) -> None:
    assert "queue-wait" not in detcloud("alarm", "list").out
    assert json.loads(detcloud("alarm", "list", "--json").out) == []
