"""The self-test's calls of AWS: interruption notices, alarms, and the end of instances."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import botocore.exceptions as sdk

from detcloud.shared.aws import new_session
from infra.aws.account_facts import Clients
from infra.aws.instance_ends import error_code, list_instances
from infra.aws.names import Names
from infra.drain_clock import Clock
from infra.verification import (
    AlarmCheck,
    ListedInstance,
    Place,
    PricedOffering,
    SentNotice,
    VerifyFailed,
    read_offerings,
)
from provisioner.clouds.aws.ec2_api import Ec2Api, create_ec2_client
from provisioner.clouds.aws.launch_request import Ec2Settings
from provisioner.clouds.aws.provider import Ec2Clouds

# The names of the stack's alarms.
ALARMS: Final = ("api", "dead-letters", "errors", "minute", "throttles")
# The rule of the stack sends this event to the function.
_WARNING: Final = "EC2 Spot Instance Interruption Warning"
_NOTICE_FUNCTION: Final = "spot_notice"
_FIS_ACTION: Final = "aws:ec2:send-spot-instance-interruptions"
# EC2's own notice period.
_FIS_NOTICE: Final = "PT2M"
_ALARM_REASON: Final = "detcloud deploy verify tests this alarm"
# CloudWatch lists an action in the history some seconds after the change of state.
HISTORY_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 2.0


class AwsVerifier:
    """The self-test's calls of AWS for a stack.

    `now` returns the time in UTC.
    """

    def __init__(
        self,
        names: Names,
        clients: Clients,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._names = names
        self._clients = clients
        self._clock = clock or Clock()
        self._now = now

    def place(self) -> Place:
        """Return the account and the region. AWS is not called."""
        return Place(self._names.account, self._names.region)

    def price_offerings(self, provider: str) -> list[PricedOffering]:
        """Return the cheapest offerings of a pool, by built-in list prices and EC2's spot prices.

        `provider` is the section of the pool as JSON. Without EC2's spot prices, spot offerings
        have the on-demand price. Raise VerifyFailed.
        """

        def complete(settings: Ec2Settings) -> Ec2Settings:
            return replace(settings, region=settings.region or self._names.region)

        def open_api(region: str) -> Ec2Api:
            return create_ec2_client(region or self._names.region, new_session())

        clouds = Ec2Clouds(
            lambda request: b"",
            lambda: int(self._now().timestamp() * 1000),
            open_api,
            complete,
        )
        return read_offerings(provider, clouds.cloud)

    def send_notice(self, instance: str, zone: str, role: str) -> SentNotice:
        """Send an interruption notice for an instance.

        With a `role`, the Fault Injection Service interrupts the spot instance. Without a role, the
        function for notices is invoked with an event like EventBridge's, and EC2 does not end the
        instance. `zone` is not used. Raise VerifyFailed.
        """
        with _refusals("the notice"):
            if role:
                return self._interrupt(instance, role)
            return self._invoke(instance)

    def check_alarms(self) -> list[AlarmCheck]:
        """Set each alarm of the stack to ALARM, and check that the history has a single action.

        Afterwards each alarm is set to its former state. An alarm that is already in ALARM is
        skipped, because the state would not change. Raise VerifyFailed.
        """
        with _refusals("the check of the alarms"):
            wanted = [self._names.part(name) for name in ALARMS]
            found = self._clients("cloudwatch").describe_alarms(AlarmNames=wanted)["MetricAlarms"]
            alarms = {str(alarm["AlarmName"]): alarm for alarm in found}
            missing = [
                AlarmCheck(name, "failed", "the alarm does not exist")
                for name in wanted
                if name not in alarms
            ]
            return [*missing, *self._trigger_alarms([alarms[name] for name in sorted(alarms)])]

    def list_instances(self) -> list[ListedInstance]:
        """Return the cluster's instances that have not ended. Raise VerifyFailed."""
        with _refusals("the list of instances"):
            return [
                ListedInstance(
                    item["InstanceId"],
                    item.get("Placement", {}).get("AvailabilityZone", ""),
                    item["State"]["Name"],
                    f"aws ec2 terminate-instances --region {self._names.region} "
                    f"--instance-ids {item['InstanceId']}",
                )
                for item in list_instances(self._names, self._clients)
            ]

    def end_instances(self, instances: Sequence[tuple[str, str]]) -> None:
        """Terminate instances of the cluster, given as pairs of zone and id.

        Instances that EC2 does not list with the cluster's tag are ignored. Raise VerifyFailed.
        """
        with _refusals("the end of the instances"):
            own = {item["InstanceId"] for item in list_instances(self._names, self._clients)}
            ids = sorted(own & {name for _, name in instances})
            if ids:
                self._clients("ec2").terminate_instances(InstanceIds=ids)

    def _invoke(self, instance: str) -> SentNotice:
        """Invoke the function for notices. Raise VerifyFailed if it fails, and the SDK's errors."""
        function = self._names.live_function(_NOTICE_FUNCTION)
        event = {
            "id": str(uuid4()),
            "source": "aws.ec2",
            "account": self._names.account,
            "region": self._names.region,
            "resources": [],
            "detail-type": _WARNING,
            "time": self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "detail": {"instance-id": instance, "instance-action": "terminate"},
        }
        answer = self._clients("lambda").invoke(FunctionName=function, Payload=json.dumps(event))
        if answer.get("FunctionError"):
            text = answer["Payload"].read().decode(errors="replace")[:300]
            raise VerifyFailed(f"the function {function} failed: {text}")
        return SentNotice(f"simulated: {function} got an event like EventBridge's", True)

    def _interrupt(self, instance: str, role: str) -> SentNotice:
        """Interrupt a spot instance by the Fault Injection Service. Raise the SDK's errors.

        The experiment template is deleted; the experiment continues without it.
        """
        fis = self._clients("fis")
        target = {
            "resourceType": "aws:ec2:spot-instance",
            "resourceArns": [self._names.ec2_arn(f"instance/{instance}")],
            "selectionMode": "ALL",
        }
        action = {
            "actionId": _FIS_ACTION,
            "parameters": {"durationBeforeInterruption": _FIS_NOTICE},
            "targets": {"SpotInstances": "instance"},
        }
        made = fis.create_experiment_template(
            clientToken=str(uuid4()),
            description=f"detcloud deploy verify of {self._names.cluster}",
            targets={"instance": target},
            actions={"interrupt": action},
            stopConditions=[{"source": "none"}],
            roleArn=role,
        )["experimentTemplate"]["id"]
        try:
            fis.start_experiment(clientToken=str(uuid4()), experimentTemplateId=made)
        finally:
            fis.delete_experiment_template(id=made)
        return SentNotice(f"the Fault Injection Service: {_FIS_ACTION}", False)

    def _trigger_alarms(self, alarms: list[dict[str, Any]]) -> list[AlarmCheck]:
        """Trigger alarms, return a result for each, and restore the states.

        Raise the SDK's errors.
        """
        found = {str(alarm["AlarmName"]): _find_obstacle(alarm) for alarm in alarms}
        ready = [alarm for alarm in alarms if found[str(alarm["AlarmName"])] is None]
        # The history of some clients has no fractions of a second.
        since = self._now().replace(microsecond=0)
        try:
            for alarm in ready:
                self._set_state(str(alarm["AlarmName"]), "ALARM")
            actions = self._await_actions(ready, since)
        finally:
            for alarm in ready:
                self._set_state(str(alarm["AlarmName"]), str(alarm["StateValue"]))
        for alarm in ready:
            name = str(alarm["AlarmName"])
            found[name] = _action_check(alarm, actions[name])
        return [check for check in found.values() if check is not None]

    def _await_actions(self, alarms: list[dict[str, Any]], since: datetime) -> dict[str, list[str]]:
        """Wait until the history of each alarm has an action, at most HISTORY_SECONDS_MAX.

        Return the summaries of the actions since a time, by the name of the alarm. Raise the SDK's
        errors.
        """
        give_up_at = self._clock.seconds() + HISTORY_SECONDS_MAX
        while True:
            names = [str(alarm["AlarmName"]) for alarm in alarms]
            actions = {name: self._actions(name, since) for name in names}
            if all(actions.values()) or self._clock.seconds() >= give_up_at:
                return actions
            self._clock.sleep(_LOOK_SECONDS)

    def _actions(self, name: str, since: datetime) -> list[str]:
        """Return the summaries of the alarm's actions since a time. Raise the SDK's errors."""
        history = self._clients("cloudwatch").describe_alarm_history(
            AlarmName=name, HistoryItemType="Action", StartDate=since
        )
        return [str(item["HistorySummary"]) for item in history["AlarmHistoryItems"]]

    def _set_state(self, name: str, state: str) -> None:
        """Set an alarm's state. Raise the SDK's errors."""
        self._clients("cloudwatch").set_alarm_state(
            AlarmName=name, StateValue=state, StateReason=_ALARM_REASON
        )


def _find_obstacle(alarm: dict[str, Any]) -> AlarmCheck | None:
    """Return the result for an alarm that cannot be triggered. Return None for other alarms."""
    name = str(alarm["AlarmName"])
    if alarm["StateValue"] == "ALARM":
        return AlarmCheck(name, "skipped", f"is in ALARM: {alarm.get('StateReason', '')}"[:300])
    if not alarm.get("ActionsEnabled", True) or not alarm.get("AlarmActions"):
        return AlarmCheck(name, "failed", "has no enabled action")
    return None


def _action_check(alarm: dict[str, Any], actions: list[str]) -> AlarmCheck:
    """Return the result for a triggered alarm from the summaries of the actions."""
    name, wanted = str(alarm["AlarmName"]), len(alarm["AlarmActions"])
    if not actions:
        text = f"the history has no action after {HISTORY_SECONDS_MAX:g} s"
        return AlarmCheck(name, "failed", text)
    if len(actions) != wanted:
        return AlarmCheck(name, "failed", f"{len(actions)} actions instead of {wanted}")
    failed = [text for text in actions if "fail" in text.lower()]
    return AlarmCheck(name, "failed", failed[0][:300]) if failed else AlarmCheck(name, "ok")


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Convert the SDK's errors in the block into VerifyFailed; `what` begins the message."""
    try:
        yield
    except sdk.ClientError as error:
        raise VerifyFailed(f"{what} failed: {error_code(error)}: {error}"[:600]) from None
    except sdk.BotoCoreError as error:
        raise VerifyFailed(f"{what} failed: {error}"[:600]) from None
