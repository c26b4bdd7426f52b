"""The tasks of AWS Fargate that run the relay of tunnels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import botocore.exceptions as sdk

from control_plane.access.relay_record import RelayRecord, encode_relay
from control_plane.usecases.relay_demand import RelayNotStarted

log = logging.getLogger(__name__)

CONTAINER = "relay"
"""The name of the task's container."""
_STOPPED = "STOPPED"
_REASON_CHARACTERS_MAX = 300
_NO_CAPACITY = ("capacity", "resource:")
_QUOTA = ("limit", "quota", "throttl")
_MISSING = ("inactive", "not found", "does not exist", "cannot be found", "unable to describe")


@dataclass(frozen=True)
class RelayPlace:
    """The resources of the stack in which the relay's task runs."""

    cluster: str
    """The ECS cluster."""
    definition: str
    """The family of the task definition."""
    subnets: tuple[str, ...]
    """Public subnets."""
    group: str
    """The security group, which lets connections to the relay's port in."""


class FargateTasks:
    """The RelayTasks of a cluster on AWS."""

    def __init__(
        self,
        client: Any,
        place: RelayPlace,
        make_environment: Callable[[str, int], Mapping[str, str]],
    ) -> None:
        """Create the tasks. No request is sent yet.

        Args:
            client: a client of ECS.
            place: the stack's resources.
            make_environment: returns the task's variables, given the record as JSON and the
                revision.
        """
        self._client, self._place = client, place
        self._make_environment = make_environment

    def start(self, record: RelayRecord, revision: int) -> str:
        """Start a task, and return the ARN of the task. See RelayTasks."""
        place = self._place
        variables = self._make_environment(encode_relay(record).decode(), revision)
        environment = [{"name": name, "value": value} for name, value in variables.items()]
        request = {
            "cluster": place.cluster,
            "taskDefinition": place.definition,
            "launchType": "FARGATE",
            "count": 1,
            "clientToken": record.attempt,
            "propagateTags": "TASK_DEFINITION",
            "networkConfiguration": {
                "awsvpcConfiguration": {
                    "subnets": list(place.subnets),
                    "securityGroups": [place.group],
                    "assignPublicIp": "ENABLED",
                }
            },
            "overrides": {"containerOverrides": [{"name": CONTAINER, "environment": environment}]},
        }
        try:
            answer = self._client.run_task(**request)
        except sdk.ClientError as error:
            raise _refusal(error) from None
        except sdk.BotoCoreError as error:
            raise RelayNotStarted(
                f"AWS did not answer the request to start the relay: {error}; try again",
                is_passing=True,
            ) from None
        if tasks := answer.get("tasks"):
            return str(tasks[0]["taskArn"])
        raise _failure([str(item.get("reason", "")) for item in answer.get("failures", ())])

    def find_failure(self, task: str) -> RelayNotStarted | None:
        """Return why a task has stopped. See RelayTasks."""
        try:
            answer = self._client.describe_tasks(cluster=self._place.cluster, tasks=[task])
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            log.warning("AWS does not describe task %s: %s", task, error)
            return None
        found = answer.get("tasks", ())
        if not found:
            return RelayNotStarted("AWS has lost the relay's task; try again", is_passing=True)
        if found[0].get("lastStatus") != _STOPPED:
            return None
        return _stop_reason(found[0])

    def stop(self, task: str) -> None:
        """Stop a task. See RelayTasks."""
        try:
            self._client.stop_task(
                cluster=self._place.cluster, task=task, reason="another task runs the relay"
            )
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            log.warning("task %s of the relay was not stopped, and ends itself: %s", task, error)


def _refusal(error: sdk.ClientError) -> RelayNotStarted:
    """Return the sentence for an error of RunTask."""
    fields = error.response.get("Error", {})
    code, text = str(fields.get("Code", "")), str(fields.get("Message", ""))
    reason = f"{code}: {text}"[:_REASON_CHARACTERS_MAX]
    if "AccessDenied" in code or "NotAuthorized" in code or "not authorized" in text:
        return RelayNotStarted(
            f"the cluster may not start its relay: {reason}; deploy the stack again, and ask the "
            "account's administrator whether a policy denies ecs:RunTask to the API's role",
            is_passing=False,
        )
    return _failure([reason])


def _failure(reasons: Sequence[str]) -> RelayNotStarted:
    """Return the sentence for AWS's reasons to start no task."""
    reason = "; ".join(filter(None, reasons))[:_REASON_CHARACTERS_MAX] or "AWS gave no reason"
    lower = reason.lower()
    if any(word in lower for word in _NO_CAPACITY):
        return RelayNotStarted(
            f"AWS has no room for the relay now: {reason}; try again in some minutes",
            is_passing=True,
        )
    if any(word in lower for word in _QUOTA):
        return RelayNotStarted(
            f"a quota of the account stops the relay: {reason}; request more of `Fargate On-Demand "
            "vCPU resource count` in Service Quotas, or try again when other tasks have ended",
            is_passing=True,
        )
    if any(word in lower for word in _MISSING):
        return RelayNotStarted(
            f"a part of the relay is missing in the account: {reason}; deploy the stack again",
            is_passing=False,
        )
    return RelayNotStarted(
        f"AWS starts no relay: {reason}; deploy the stack again if the error stays",
        is_passing=True,
    )


def _stop_reason(task: Mapping[str, Any]) -> RelayNotStarted:
    """Return the sentence for a stopped task."""
    containers = task.get("containers", ())
    reasons = [str(task.get("stoppedReason", ""))]
    for container in containers:
        reasons.append(str(container.get("reason", "")))
        if (code := container.get("exitCode")) is not None:
            reasons.append(f"exit status {code}")
    reason = "; ".join(filter(None, reasons))[:_REASON_CHARACTERS_MAX] or "AWS gave no reason"
    if "CannotPull" in reason or "ResourceInitialization" in reason:
        return RelayNotStarted(
            f"the relay's machine could not start: {reason}; the subnets of the relay need a route "
            "to the internet, to fetch the image and the code",
            is_passing=False,
        )
    if any(word in reason.lower() for word in _NO_CAPACITY):
        return _failure([reason])
    return RelayNotStarted(
        f"the relay has stopped: {reason}; its log, which docs/aws.md names, has the reason",
        is_passing=True,
    )
