"""Terminates the instances and the relay of a cluster before the stack is removed.

The tick and `wake` are stopped first, so that nothing launches again. Launch templates, which the
cluster created at run time, are deleted too.
"""

import botocore.exceptions as sdk

from detcloud.shared.plurals import count_text
from infra.aws.account_facts import Clients
from infra.aws.functions import SIZES
from infra.aws.instance_ends import (
    VISIBLE_SECONDS,
    delete_templates,
    end_until_quiet,
    error_code,
    list_instances,
)
from infra.aws.names import Names
from infra.drain_clock import Clock
from infra.stack_program import DrainFailed, DrainReport, Progress
from provisioner.clouds.provider import CLUSTER_TAG

# The functions that launch instances.
LAUNCHING = ("tick", "wake")
_MISSING = frozenset({"ClusterNotFoundException", "ResourceNotFoundException"})


def drain(
    names: Names, clients: Clients, progress: Progress, clock: Clock | None = None
) -> DrainReport:
    """Stop the tick for good, and remove the cluster's instances and launch templates.

    Wait until no instance is left and no running tick can still launch an instance. The report
    counts the terminated instances and deleted templates. A repeated call finds less to do.

    Raises:
        DrainFailed: the table is still protected from deletion (nothing was changed), instances did
            not end within END_SECONDS_MAX, or AWS refused a call or could not be reached.
    """
    clock = clock or Clock()
    try:
        _refuse_protected(names, clients)
        quiet_at = clock.seconds() + _stop_tick(names, clients, progress)
        _stop_relay(names, clients, progress)
        instances = end_until_quiet(names, clients, progress, clock, quiet_at)
        templates = delete_templates(names, clients)
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        raise DrainFailed(f"AWS refused a request, try again: {error}") from None
    ended = count_text(instances, "instance")
    progress(f"{ended} ended, {count_text(templates, 'launch template')} deleted")
    return DrainReport(instances, templates)


def find_leftovers(names: Names, clients: Clients) -> list[str]:
    """Return the sorted ARNs of all resources that AWS lists with the cluster's tag.

    Terminated instances are left out, because AWS lists them for another hour. Definitions of tasks
    are left out, because AWS keeps the deregistered ones, which cost nothing. If AWS refuses a call
    or cannot be reached, return one line that says so.
    """
    try:
        return _find_tagged(names, clients)
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        return [f"AWS did not return the remaining resources: {error}"]


def _find_tagged(names: Names, clients: Clients) -> list[str]:
    """Return the sorted ARNs of resources with the cluster's tag.

    Terminated instances and definitions of tasks are left out. Raise the SDK's errors.
    """
    pages = clients("resourcegroupstaggingapi").get_paginator("get_resources")
    asked = [{"Key": CLUSTER_TAG, "Values": [names.cluster]}]
    found = [
        item["ResourceARN"]
        for page in pages.paginate(TagFilters=asked)
        for item in page["ResourceTagMappingList"]
    ]
    living = {instance["InstanceId"] for instance in list_instances(names, clients)}
    return sorted(
        arn
        for arn in found
        if ":task-definition/" not in arn
        and (":instance/" not in arn or arn.rpartition("/")[2] in living)
    )


def _refuse_protected(names: Names, clients: Clients) -> None:
    """Raise DrainFailed if the table is protected from deletion.

    Do nothing for a missing table. Raise the SDK's errors if the table cannot be read.
    """
    try:
        table = clients("dynamodb").describe_table(TableName=names.cluster)["Table"]
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return
        raise
    if table.get("DeletionProtectionEnabled"):
        raise DrainFailed(
            f"the table {names.cluster} is protected: set detcloud:protect: false and deploy first"
        )


def _stop_relay(names: Names, clients: Clients, progress: Progress) -> None:
    """Stop the relay's task, which would keep the ECS cluster and a network interface in use.

    Report each stop to `progress`. Do nothing for a stack without a relay. Raise the SDK's errors.
    """
    ecs, cluster = clients("ecs"), names.part("relay")
    try:
        tasks = ecs.list_tasks(cluster=cluster)["taskArns"]
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return
        raise
    for task in tasks:
        ecs.stop_task(cluster=cluster, task=task, reason="the cluster is removed")
        progress(f"the relay's task {task.rpartition('/')[2]} is stopped")


def _stop_tick(names: Names, clients: Clients, progress: Progress) -> float:
    """Set the reserved concurrency of the tick and of `wake` to 0, so that neither starts any more.

    Report each stop to `progress`. Return the seconds after which EC2 lists every instance that a
    running function may still launch. Return 0.0, without a report, if neither function exists.
    Raise the SDK's errors if AWS refuses.
    """
    return max(_stop_function(names, clients, progress, name) for name in LAUNCHING)


def _stop_function(names: Names, clients: Clients, progress: Progress, name: str) -> float:
    """Set a function's reserved concurrency to 0, and report the stop.

    Return the seconds after which EC2 lists every instance that a running call may still launch.
    Return 0.0, without a report, if the function does not exist. Raise the SDK's other errors.
    """
    function = names.part(name)
    try:
        clients("lambda").put_function_concurrency(
            FunctionName=function, ReservedConcurrentExecutions=0
        )
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return 0.0
        raise
    progress(f"the function {function} is stopped and launches no more instances")
    return SIZES[name].seconds_max + VISIBLE_SECONDS
