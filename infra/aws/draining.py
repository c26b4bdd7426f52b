"""The end of a cluster's instances before its stack is removed: whoever launches is stopped first,
so that nothing begins anew, and what was made at run time goes with them.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.functions import SIZES
from infra.aws.names import Names
from infra.stack_program import DrainFailed, DrainReport, Progress
from provisioner.clouds.provider import CLUSTER_TAG

# EC2 may show an instance later than it answers with its id.
VISIBLE_SECONDS = 15
LOOK_SECONDS = 5
END_SECONDS_MAX = 900
_LIVE = ("pending", "running", "stopping", "stopped")
_ENDING = "shutting-down"
_MISSING = frozenset({"ResourceNotFoundException"})


@dataclass(frozen=True)
class Clock:
    """Seconds that pass, and a wait for them."""

    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def drain(
    names: Names, clients: Clients, progress: Progress, clock: Clock | None = None
) -> DrainReport:
    """End the cluster's instances and delete its launch templates; its tick is stopped, and stays
    so. Whoever repeats it goes on where it stopped.

    Raises:
        DrainFailed: the table is protected still, or instances do not end.
    """
    clock = clock or Clock()
    _refuse_protected(names, clients)
    quiet_at = clock.seconds() + _stop_tick(names, clients, progress)
    instances = _end_instances(names, clients, progress, clock, quiet_at)
    templates = _delete_templates(names, clients)
    progress(f"{instances} instances ended, {templates} launch templates deleted")
    return DrainReport(instances, templates)


def find_leftovers(names: Names, clients: Clients) -> list[str]:
    """Return what AWS still lists with the cluster's tag, but for instances that have ended: it
    shows them for an hour.
    """
    pages = clients("resourcegroupstaggingapi").get_paginator("get_resources")
    asked = [{"Key": CLUSTER_TAG, "Values": [names.cluster]}]
    found = [
        it["ResourceARN"]
        for page in pages.paginate(TagFilters=asked)
        for it in page["ResourceTagMappingList"]
    ]
    living = {it["InstanceId"] for it in _instances(names, clients, (*_LIVE, _ENDING))}
    return sorted(
        arn for arn in found if ":instance/" not in arn or arn.rpartition("/")[2] in living
    )


def _refuse_protected(names: Names, clients: Clients) -> None:
    try:
        table = clients("dynamodb").describe_table(TableName=names.cluster)["Table"]
    except sdk.ClientError as error:
        if _code(error) in _MISSING:
            return
        raise
    if table.get("DeletionProtectionEnabled"):
        raise DrainFailed(
            f"the table {names.cluster} is protected: set detcloud:protect: false and deploy first"
        )


def _stop_tick(names: Names, clients: Clients, progress: Progress) -> float:
    """Let no tick begin any more; return the seconds for which one that runs may yet launch."""
    tick = names.part("tick")
    try:
        clients("lambda").put_function_concurrency(
            FunctionName=tick, ReservedConcurrentExecutions=0
        )
    except sdk.ClientError as error:
        if _code(error) in _MISSING:
            return 0.0
        raise
    progress(f"the function {tick} is stopped: nothing is launched from now on")
    return SIZES["tick"].seconds_max + VISIBLE_SECONDS


def _end_instances(
    names: Names, clients: Clients, progress: Progress, clock: Clock, quiet_at: float
) -> int:
    """End all instances, and those of a launch that was under way; return how many there were."""
    ended: set[str] = set()
    give_up_at = clock.seconds() + END_SECONDS_MAX
    while True:
        living = _instances(names, clients, (*_LIVE, _ENDING))
        fresh = [it["InstanceId"] for it in living if it["State"]["Name"] != _ENDING]
        if fresh:
            progress(f"ending {', '.join(sorted(fresh))}")
            clients("ec2").terminate_instances(InstanceIds=sorted(fresh))
            ended |= set(fresh)
        now = clock.seconds()
        if not living and now >= quiet_at:
            return len(ended)
        if now >= give_up_at:
            names_left = ", ".join(sorted(it["InstanceId"] for it in living))
            raise DrainFailed(
                f"{names_left} did not end in {END_SECONDS_MAX} s; look at them in EC2's console, "
                "and try again"
            )
        clock.sleep(LOOK_SECONDS)


def _instances(names: Names, clients: Clients, states: tuple[str, ...]) -> list[dict[str, Any]]:
    filters = [
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [names.cluster]},
        {"Name": "instance-state-name", "Values": list(states)},
    ]
    pages = clients("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [it for page in pages for group in page["Reservations"] for it in group["Instances"]]


def _delete_templates(names: Names, clients: Clients) -> int:
    deleted = [_delete_template(clients, it) for it in _templates(names, clients)]
    return sum(deleted)


def _templates(names: Names, clients: Clients) -> Iterator[str]:
    filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [names.cluster]}]
    pages = clients("ec2").get_paginator("describe_launch_templates").paginate(Filters=filters)
    found = [it["LaunchTemplateId"] for page in pages for it in page["LaunchTemplates"]]
    yield from found


def _delete_template(clients: Clients, template: str) -> bool:
    try:
        clients("ec2").delete_launch_template(LaunchTemplateId=template)
    except sdk.ClientError as error:
        if not _code(error).startswith("InvalidLaunchTemplateId"):
            raise
        return False
    return True


def _code(error: sdk.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
