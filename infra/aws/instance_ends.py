"""Termination of a cluster's instances and deletion of launch templates on AWS.

The cluster's tick must be stopped already, or launches would continue.
"""

from typing import Any

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.names import Names
from infra.drain_clock import Clock
from infra.stack_program import DrainFailed, DrainReport, Progress
from provisioner.clouds.provider import CLUSTER_TAG

# EC2 may list an instance only some seconds after the launch returned the id.
VISIBLE_SECONDS = 15
LOOK_SECONDS = 5
END_SECONDS_MAX = 900
_ENDING = "shutting-down"
LIVE = ("pending", "running", "stopping", "stopped", _ENDING)


def end_own_parts(
    names: Names, clients: Clients, progress: Progress, clock: Clock | None = None
) -> DrainReport:
    """Terminate the instances and delete the launch templates of a cluster in another cloud.

    The cluster's tick in that cloud must be stopped. Wait until no instance is left, and at least
    VISIBLE_SECONDS. Report progress about terminated instances.

    Raises:
        DrainFailed: instances did not end within END_SECONDS_MAX.
        ClientError, BotoCoreError: AWS refused a call or could not be reached.
    """
    clock = clock or Clock()
    quiet_at = clock.seconds() + VISIBLE_SECONDS
    instances = end_until_quiet(names, clients, progress, clock, quiet_at)
    return DrainReport(instances, delete_templates(names, clients))


def end_until_quiet(
    names: Names, clients: Clients, progress: Progress, clock: Clock, quiet_at: float
) -> int:
    """Terminate the cluster's instances until all have ended, and at least until `quiet_at`.

    `quiet_at` is a time of the clock, in seconds, after which no new instance can appear. Report
    the instances that are terminated. Return the number of instances that this call terminated.
    Raise DrainFailed if instances are left after END_SECONDS_MAX, and the SDK's errors.
    """
    ended: set[str] = set()
    give_up_at = clock.seconds() + END_SECONDS_MAX
    while True:
        living = list_instances(names, clients)
        fresh = [item["InstanceId"] for item in living if item["State"]["Name"] != _ENDING]
        if fresh:
            progress(f"ending {', '.join(sorted(fresh))}")
            clients("ec2").terminate_instances(InstanceIds=sorted(fresh))
            ended |= set(fresh)
        now = clock.seconds()
        if not living and now >= quiet_at:
            return len(ended)
        if now >= give_up_at:
            names_left = ", ".join(sorted(item["InstanceId"] for item in living))
            raise DrainFailed(
                f"{names_left} did not end in {END_SECONDS_MAX} s; look at them in EC2's console, "
                "and try again"
            )
        clock.sleep(LOOK_SECONDS)


def list_instances(names: Names, clients: Clients) -> list[dict[str, Any]]:
    """Return EC2's descriptions of the cluster's instances in the states of LIVE; [] without any.

    The SDK's errors are raised.
    """
    filters = [
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [names.tag]},
        {"Name": "instance-state-name", "Values": list(LIVE)},
    ]
    pages = clients("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [
        instance
        for page in pages
        for group in page["Reservations"]
        for instance in group["Instances"]
    ]


def delete_templates(names: Names, clients: Clients) -> int:
    """Delete the cluster's launch templates, and return the number of deleted templates.

    A template that was deleted meanwhile is not counted. Raise the SDK's other errors.
    """
    return sum(_delete_template(clients, template) for template in list_templates(names, clients))


def list_templates(names: Names, clients: Clients) -> list[str]:
    """Return the ids of the cluster's launch templates; [] without any. Raise the SDK's errors."""
    filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [names.tag]}]
    pages = clients("ec2").get_paginator("describe_launch_templates").paginate(Filters=filters)
    return [
        launch_template["LaunchTemplateId"]
        for page in pages
        for launch_template in page["LaunchTemplates"]
    ]


def _delete_template(clients: Clients, template: str) -> bool:
    """Delete a launch template by id, and return True.

    Return False if the template no longer exists. Raise the SDK's other errors.
    """
    try:
        clients("ec2").delete_launch_template(LaunchTemplateId=template)
    except sdk.ClientError as error:
        if not error_code(error).startswith("InvalidLaunchTemplateId"):
            raise
        return False
    return True


def error_code(error: sdk.ClientError) -> str:
    """Return AWS's code of an error, or "" if the error has no code."""
    return str(error.response.get("Error", {}).get("Code", ""))
