"""`detcloud alarm`."""

import json

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.fake_refusal import Refusal

ALARM = {
    "alarm": "queue-wait",
    "pool": "gpus",
    "text": "job 7 has waited for slots for 2 h 5 min",
    "raised_ms": 1_764_000_000_000,
    "runbook": "docs/runbook/queue-wait.md",
}
STATE = {"state": "raised", "since_ms": 1_764_000_000_000, "value": "2 h 5 min", "threshold": "2 h"}
CLEAR = {"state": "clear", "since_ms": None, "value": "", "threshold": "2 h", "text": ""}


def test_lists_alarms(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.alarms = [ALARM, {**ALARM, "alarm": "lag", "pool": ""}]
    lines = detcloud("alarm", "list", "--csv").out.splitlines()
    assert lines[0] == "Alarm,Resource pool,Raised,Found,Runbook"
    assert lines[1].startswith("queue-wait,gpus,")
    assert lines[1].endswith(",detcloud alarm describe queue-wait")
    assert lines[2].startswith("lag,N/A,")
    assert json.loads(detcloud("alarm", "list", "--json").out)[0] == ALARM


def test_without_alarms_only_titles(fake: FakeCluster, detcloud: Detcloud) -> None:
    assert "queue-wait" not in detcloud("alarm", "list").out
    assert json.loads(detcloud("alarm", "list", "--json").out) == []


def test_lists_states_with_values_and_thresholds(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.alarms = [ALARM | STATE, ALARM | CLEAR | {"alarm": "lag", "pool": ""}]
    lines = detcloud("alarm", "list", "--all", "--csv").out.splitlines()
    assert lines[0] == "Alarm,Resource pool,State,Value,Threshold,Since,Found"
    assert lines[1].startswith("queue-wait,gpus,raised,2 h 5 min,2 h,2025-11-24")
    assert lines[2] == "lag,N/A,clear,N/A,2 h,N/A,N/A"


def test_describes_an_alarm_with_its_page(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.alarms = [ALARM | STATE]
    described = detcloud("alarm", "describe", "queue-wait")
    assert described.out.startswith("# Alarm `queue-wait`\n\n**Meaning.** ")
    assert "## Silence an alarm" in described.out
    assert " queue-wait | gpus " in described.out.splitlines()[-1]
    shown = json.loads(detcloud("alarm", "describe", "queue-wait", "--json").out)
    assert shown["items"] == fake.alarms
    assert shown["runbook"].startswith("# Alarm `queue-wait`")


def test_page_is_printed_without_a_cluster(detcloud: Detcloud) -> None:
    described = detcloud("alarm", "describe", "minute")
    assert described.code == 0
    assert described.out.startswith("# Alarm `minute`")
    assert described.err.startswith("note: the state of the alarm is not known: ")


@pytest.mark.parametrize("status", [404, 500])
def test_page_is_printed_for_an_older_or_failing_cluster(
    fake: FakeCluster, detcloud: Detcloud, status: int
) -> None:
    def refuse(method: str, target: str) -> None:
        raise Refusal(status, "unavailable", "the table does not answer")

    fake.on_request = refuse
    described = detcloud("alarm", "describe", "errors", "--json")
    assert described.code == 0
    shown = json.loads(described.out)
    assert (shown["items"], shown["alarm"]) == (None, "errors")


def test_unknown_alarm_is_refused_with_the_names(detcloud: Detcloud) -> None:
    refused = detcloud("alarm", "describe", "README")
    assert refused.code == 1
    assert "there is no alarm README; the alarms are api, dead-letters, errors," in refused.err
