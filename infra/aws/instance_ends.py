"""The end of what a cluster made by itself on AWS, whose launcher is stopped: instances and launch
templates.
"""

from typing import Any

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.names import Names
from infra.drain_clock import Clock
from infra.stack_program import DrainFailed, DrainReport, Progress
from provisioner.clouds.provider import CLUSTER_TAG

# EC2 may show an instance later than it answers with its id.
VISIBLE_SECONDS = 15
LOOK_SECONDS = 5
END_SECONDS_MAX = 900
_ENDING = "shutting-down"
LIVE = ("pending", "running", "stopping", "stopped", _ENDING)


def end_own_parts(
    names: Names, clients: Clients, progress: Progress, clock: Clock | None = None
) -> DrainReport:
    """End the instances of a cluster whose tick, in another cloud, is stopped, and delete its
    launch templates. Raises DrainFailed.
    """
    clock = clock or Clock()
    quiet_at = clock.seconds() + VISIBLE_SECONDS
    instances = end_until_quiet(names, clients, progress, clock, quiet_at)
    return DrainReport(instances, delete_templates(names, clients))


def end_until_quiet(
    names: Names, clients: Clients, progress: Progress, clock: Clock, quiet_at: float
) -> int:
    """Terminate all instances, including those of launches that end before `quiet_at`.

    Returns their number. Raises DrainFailed.
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
    """Return the cluster's instances that have not ended, as EC2 describes them."""
    filters = [
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [names.cluster]},
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
    """Delete the cluster's launch templates; return how many."""
    return sum(_delete_template(clients, template) for template in list_templates(names, clients))


def list_templates(names: Names, clients: Clients) -> list[str]:
    """Return the ids of the cluster's launch templates."""
    filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [names.cluster]}]
    pages = clients("ec2").get_paginator("describe_launch_templates").paginate(Filters=filters)
    return [
        launch_template["LaunchTemplateId"]
        for page in pages
        for launch_template in page["LaunchTemplates"]
    ]


def _delete_template(clients: Clients, template: str) -> bool:
    try:
        clients("ec2").delete_launch_template(LaunchTemplateId=template)
    except sdk.ClientError as error:
        if not error_code(error).startswith("InvalidLaunchTemplateId"):
            raise
        return False
    return True


def error_code(error: sdk.ClientError) -> str:
    """Return AWS's code of an error, "" where it has none."""
    return str(error.response.get("Error", {}).get("Code", ""))
