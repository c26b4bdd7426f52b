"""Notifications of alarms on AWS, against moto, and in the form of Cloud Logging."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.alarms.notifications import AlarmNotification, NotificationFailed
from tests.conftest import require

require("moto")
boto3 = pytest.importorskip("boto3")

import moto  # noqa: E402

from lambdas.aws.alarm_topic import SnsNotifier  # noqa: E402
from lambdas.gcp.alarm_log import CloudLogNotifier  # noqa: E402
from lambdas.gcp.telemetry import Telemetry  # noqa: E402

RAISED = AlarmNotification(
    cluster="detcloud-vision",
    alarm="queue-wait",
    pool="gpus",
    change="raised",
    text="job 7 has waited for slots for 2 h 5 min",
    raised_ms=5,
    runbook="docs/runbook/queue-wait.md",
)


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Restore the root logger after the test, since Telemetry replaces the handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        yield lambda service: boto3.client(service, "us-east-1")


def test_topic_delivers_text_and_attributes(aws: Any) -> None:
    sns, sqs = aws("sns"), aws("sqs")
    topic = sns.create_topic(Name="detcloud-vision-alarms")["TopicArn"]
    queue = sqs.create_queue(QueueName="mail")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"])
    SnsNotifier(sns, topic).notify(RAISED)
    [message] = sqs.receive_message(QueueUrl=queue)["Messages"]
    delivered = json.loads(message["Body"])
    assert delivered["Subject"] == "detcloud-vision: alarm queue-wait raised in pool gpus"
    assert RAISED.text in delivered["Message"]
    assert "docs/runbook/queue-wait.md" in delivered["Message"]
    attributes = {name: item["Value"] for name, item in delivered["MessageAttributes"].items()}
    assert attributes == {"alarm": "queue-wait", "change": "raised", "pool": "gpus"}


def test_missing_topic_names_topic_and_permission(aws: Any) -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:gone"
    with pytest.raises(NotificationFailed, match=f"{topic} did not accept .* sns:Publish"):
        SnsNotifier(aws("sns"), topic).notify(RAISED)


def test_line_of_google_has_the_extracted_fields(capsys: pytest.CaptureFixture[str]) -> None:
    from infra.gcp.alarms import EXTRACTED

    Telemetry("tick")
    CloudLogNotifier().notify(RAISED)
    line = json.loads(capsys.readouterr().out)
    assert {name: line[name] for name in EXTRACTED} == {
        "alarm": "queue-wait",
        "change": "raised",
        "pool": "gpus",
        "raised_ms": 5,
        "runbook": "docs/runbook/queue-wait.md",
    }
    assert line["severity"] == "WARNING"
    assert RAISED.text in line["message"]
