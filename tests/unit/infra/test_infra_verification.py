"""The self-test's calls of AWS, with substitutes for the clients of the SDK."""

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.aws.names import Names
from infra.aws.verification import ALARMS, HISTORY_SECONDS_MAX, AwsVerifier
from infra.drain_clock import Clock
from infra.verification import AlarmCheck, VerifyFailed, run_part

ACCOUNT = "123456789012"
NAMES = Names("vision", ACCOUNT, "us-east-1")
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
OWN, OTHER = "i-1", "i-2"


class Aws:
    """Substitutes for the clients of all services; calls are recorded."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: list[tuple[str, Any]] = []
        self.alarms = {NAMES.part(name): "OK" for name in ALARMS}
        self.actions = 1
        self.error: ClientError | None = None
        self.function_error = False

    def __call__(self, service: str) -> Any:
        return self

    @property
    def verifier(self) -> AwsVerifier:
        def sleep(seconds: float) -> None:
            self.seconds += seconds

        return AwsVerifier(NAMES, self, Clock(lambda: self.seconds, sleep), lambda: NOW)

    def describe_alarms(self, AlarmNames: list[str]) -> Any:
        found = [
            {"AlarmName": name, "StateValue": state, "AlarmActions": ["arn:topic"]}
            for name, state in self.alarms.items()
        ]
        return {"MetricAlarms": found}

    def set_alarm_state(self, AlarmName: str, StateValue: str, StateReason: str) -> None:
        self.calls.append((AlarmName, StateValue))

    def describe_alarm_history(self, AlarmName: str, **asked: Any) -> Any:
        assert asked == {"HistoryItemType": "Action", "StartDate": NOW}
        return {"AlarmHistoryItems": [{"HistorySummary": "Successfully"}] * self.actions}

    def invoke(self, FunctionName: str, Payload: str) -> Any:
        if self.error is not None:
            raise self.error
        self.calls.append((FunctionName, json.loads(Payload)))
        failed = {"FunctionError": "Unhandled"} if self.function_error else {}
        return {"Payload": io.BytesIO(b"it broke"), **failed}

    def get_paginator(self, operation: str) -> Any:
        return self

    def paginate(self, **asked: Any) -> Any:
        return [
            {"Reservations": [{"Instances": [{"InstanceId": OWN, "State": {"Name": "running"}}]}]}
        ]

    def terminate_instances(self, InstanceIds: list[str]) -> None:
        self.calls.append(("terminate", InstanceIds))

    def create_experiment_template(self, **asked: Any) -> Any:
        self.calls.append(("template", asked))
        return {"experimentTemplate": {"id": "EXT1"}}

    def start_experiment(self, **asked: Any) -> None:
        self.calls.append(("start", asked["experimentTemplateId"]))

    def delete_experiment_template(self, **asked: Any) -> None:
        self.calls.append(("delete", asked["id"]))


@pytest.fixture
def aws() -> Aws:
    return Aws()


def test_each_alarm_is_triggered_once_and_restored(aws: Aws) -> None:
    checks = aws.verifier.check_alarms()
    names = sorted(aws.alarms)
    assert checks == [AlarmCheck(name, "ok") for name in names]
    assert aws.calls == [*((name, "ALARM") for name in names), *((name, "OK") for name in names)]


def test_alarm_without_an_action_fails_and_is_restored(aws: Aws) -> None:
    aws.actions = 0
    checks = aws.verifier.check_alarms()
    assert {check.result for check in checks} == {"failed"}
    assert "no action after" in checks[0].reason
    assert aws.seconds >= HISTORY_SECONDS_MAX
    assert aws.calls[-1] == (max(aws.alarms), "OK")


def test_alarm_with_two_actions_fails(aws: Aws) -> None:
    aws.actions = 2
    assert aws.verifier.check_alarms()[0].reason == "2 actions instead of 1"


def test_alarm_in_alarm_is_skipped(aws: Aws) -> None:
    aws.alarms[NAMES.part("minute")] = "ALARM"
    checks = {check.name: check.result for check in aws.verifier.check_alarms()}
    assert checks[NAMES.part("minute")] == "skipped"
    assert (NAMES.part("minute"), "ALARM") not in aws.calls


def test_missing_alarm_fails(aws: Aws) -> None:
    del aws.alarms[NAMES.part("minute")]
    checks = {check.name: check.reason for check in aws.verifier.check_alarms()}
    assert checks[NAMES.part("minute")] == "the alarm does not exist"


def test_simulated_notice_is_the_event_of_the_rule(aws: Aws) -> None:
    sent = run_part(aws.verifier, "notice", [f"us-east-1a/{OWN}"])
    assert sent["simulated"]
    [(function, event)] = aws.calls
    assert function == "detcloud-vision-spot-notice:live"
    assert event["detail-type"] == "EC2 Spot Instance Interruption Warning"
    assert event["time"] == "2026-11-29T12:00:00Z"
    assert event["detail"] == {"instance-id": OWN, "instance-action": "terminate"}


def test_role_interrupts_by_the_fault_injection_service(aws: Aws) -> None:
    sent = run_part(aws.verifier, "notice", [f"us-east-1a/{OWN}"], "arn:role")
    assert not sent["simulated"]
    assert [call[0] for call in aws.calls] == ["template", "start", "delete"]
    asked = aws.calls[0][1]
    assert asked["roleArn"] == "arn:role"
    assert asked["targets"]["instance"]["resourceArns"] == [NAMES.ec2_arn(f"instance/{OWN}")]


def test_failed_function_is_an_error(aws: Aws) -> None:
    aws.function_error = True
    with pytest.raises(VerifyFailed, match="failed: it broke"):
        aws.verifier.send_notice(OWN, "", "")


def test_refused_call_is_an_error(aws: Aws) -> None:
    aws.error = ClientError({"Error": {"Code": "AccessDenied"}}, "Invoke")
    with pytest.raises(VerifyFailed, match="the notice failed: AccessDenied"):
        aws.verifier.send_notice(OWN, "", "")


def test_only_own_instances_are_ended(aws: Aws) -> None:
    run_part(aws.verifier, "end", [f"a/{OWN}", f"a/{OTHER}"])
    assert aws.calls == [("terminate", [OWN])]


def test_listed_instance_has_its_removal_command(aws: Aws) -> None:
    [listed] = run_part(aws.verifier, "instances")["instances"]
    assert listed["removal"] == (
        f"aws ec2 terminate-instances --region us-east-1 --instance-ids {OWN}"
    )


def test_place_has_the_account(aws: Aws) -> None:
    assert run_part(aws.verifier, "place") == {
        "account": ACCOUNT,
        "region": "us-east-1",
        "private": (),
    }


def test_notice_needs_an_instance(aws: Aws) -> None:
    with pytest.raises(VerifyFailed, match="needs an instance"):
        run_part(aws.verifier, "notice")


def test_list_price_stands_in_for_missing_spot_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens at this address.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    offering = {"instance_type": "g4dn.xlarge", "zone": "us-east-1a", "market": "spot", "slots": 1}
    provider = {"type": "aws", "offerings": [offering], "max_idle_agent_period": 5000}
    [priced] = run_part(Aws().verifier, "prices", providers=[json.dumps(provider)])["offerings"][0]
    assert (priced["instance_type"], priced["market"]) == ("g4dn.xlarge", "spot")
    # The on-demand price of 0.526 dollars, and the disk and the address.
    assert 0.526 < priced["price_per_hour"] < 0.6


def test_unusable_provider_is_an_error() -> None:
    with pytest.raises(VerifyFailed, match="prices are unknown"):
        run_part(Aws().verifier, "prices", providers=['{"type": "aws", "instance_type": "x1.y"}'])
