"""The list of raised alarms."""

import json
from pathlib import Path

from control_plane.access.principals import Role
from control_plane.alarms.records import AlarmRow
from control_plane.alarms.rows import alarm_key, encode_alarm
from control_plane.state.table import Expect, Put
from tests.unit.api.cluster import TOKENS, V1, build_cluster
from tests.unit.api.exchange import call


def test_lists_raised_alarms_only(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path / "objects")
    rows = [
        AlarmRow("queue-wait", "gpus", "job 7 waits", 1, raised_ms=5, is_notified=True),
        AlarmRow("failed-boots", "gpus", "broken", 1, raised_ms=4),
        AlarmRow("lag", "", "late", 1),
        AlarmRow("machine-age", "gpus", "old", 1, raised_ms=2, cleared_ms=3, is_notified=True),
    ]
    for row in rows:
        put = Put(alarm_key(row.alarm, row.pool), 1, encode_alarm(row), Expect.ABSENT)
        cluster.services.table.commit((put,))
    answer = cluster.get("/alarms")
    assert answer.status == 200
    assert json.loads(answer.body)["items"] == [
        {
            "alarm": "failed-boots",
            "pool": "gpus",
            "text": "broken",
            "raised_ms": 4,
            "runbook": "docs/runbook/failed-boots.md",
        },
        {
            "alarm": "queue-wait",
            "pool": "gpus",
            "text": "job 7 waits",
            "raised_ms": 5,
            "runbook": "docs/runbook/queue-wait.md",
        },
    ]


def test_agents_may_not_list_alarms(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path / "objects")
    answer = call(cluster.app, "GET", f"{V1}/alarms", token=TOKENS[Role.AGENT])
    assert answer.status == 403
