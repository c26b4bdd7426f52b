"""The alarms of a team's stack on AWS, and the queue of events that were given up."""

import json
import re

import pytest
from aws_lambda_powertools import Logger

from infra.aws.names import FUNCTIONS
from infra.aws.verification import ALARMS
from tests.unit.infra.graphs import Graph


def test_events_that_are_given_up_go_to_the_dead_letter_queue(vision: Graph) -> None:
    queue = {"arn": "Queue.dead-letters.arn"}
    for target in vision.inputs_of("EventTarget").values():
        assert target["deadLetterConfig"] == queue
    configs = vision.inputs_of("FunctionEventInvokeConfig")
    destinations = {name: item.get("destinationConfig") for name, item in configs.items()}
    kept = {"onFailure": {"destination": "Queue.dead-letters.arn"}}
    # The tick invokes the others again in the next minute.
    assert destinations == {
        "tick": kept,
        "spot_notice": kept,
        "checkpoint_gc": None,
        "suggest": None,
    }
    # Lambda repeats a failed run after a minute, and the run may take another minute.
    assert configs["tick"]["maximumEventAgeInSeconds"] >= 60 + 60
    [statement] = json.loads(vision.inputs_of("Queue")["dead-letters"]["policy"])["Statement"]
    rules = {item["name"] for item in vision.inputs_of("EventRule").values()}
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    assert statement["Condition"] == {
        "ArnEquals": {
            "aws:SourceArn": sorted(
                f"arn:aws:events:us-east-1:111111111111:rule/{rule}" for rule in rules
            )
        }
    }


def test_alarms_notify_the_alarm_address(vision: Graph, speech: Graph) -> None:
    alarms = vision.inputs_of("MetricAlarm")
    assert set(alarms) == set(ALARMS)
    for name, alarm in alarms.items():
        assert alarm["alarmActions"] == ["Topic.alarms.arn"]
        expected = "breaching" if name == "minute" else "notBreaching"
        assert alarm["treatMissingData"] == expected
        assert f"detcloud alarm describe {name}" in alarm["alarmDescription"]
    described = speech.inputs_of("MetricAlarm")["minute"]["alarmDescription"]
    assert "https://wiki.example.com/minute.md" in described
    assert {item["logGroupName"] for item in vision.inputs_of("LogMetricFilter").values()} == {
        vision.inputs_of("LogGroup")[name]["name"] for name in FUNCTIONS
    }
    subscription = vision.inputs_of("TopicSubscription")["alarms"]
    assert (subscription["protocol"], subscription["endpoint"]) == ("email", "vision@example.com")


def test_missing_ticks_raise_an_alarm_after_ten_minutes(vision: Graph) -> None:
    alarm = vision.inputs_of("MetricAlarm")["minute"]
    metric, filled = alarm["metricQueries"]
    assert metric["metric"]["dimensions"] == {"FunctionName": "detcloud-vision-tick"}
    assert (metric["metric"]["metricName"], metric["metric"]["stat"]) == ("Invocations", "Sum")
    assert filled["expression"] == "FILL(invocations, 0)"
    assert alarm["evaluationPeriods"] * metric["metric"]["period"] == 600
    assert (alarm["comparisonOperator"], alarm["threshold"]) == ("LessThanThreshold", 1)


def test_error_filter_matches_the_functions_log_lines(
    vision: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = Logger(service="tick", json_serializer=json.dumps)
    pattern = vision.inputs_of("LogMetricFilter")["tick"]["pattern"]
    terms = [term.replace('\\"', '"') for term in re.findall(r'\?"((?:\\.|[^"\\])*)"', pattern)]
    levels, others = terms[:2], terms[2:]
    assert others == ["[ERROR]", "Task timed out", "Runtime exited"]
    for says in (logger.error, logger.critical):
        says("the tick failed")
        line = capsys.readouterr().out
        assert any(term in line for term in levels)
    logger.warning("the tick is slow")
    assert not any(term in capsys.readouterr().out for term in levels)
