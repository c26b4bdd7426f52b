"""The end of a cluster's instances before its stack is removed: what launches is stopped first,
so that nothing starts again, and what was made at run time goes with them.
"""

import botocore.exceptions as sdk

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

_MISSING = frozenset({"ResourceNotFoundException"})


def drain(
    names: Names, clients: Clients, progress: Progress, clock: Clock | None = None
) -> DrainReport:
    """End the cluster's instances and delete its launch templates; its tick is stopped, and stays
    so. It can be repeated.

    Raises:
        DrainFailed: the table is protected still, or instances do not end.
    """
    clock = clock or Clock()
    _refuse_protected(names, clients)
    quiet_at = clock.seconds() + _stop_tick(names, clients, progress)
    instances = end_until_quiet(names, clients, progress, clock, quiet_at)
    templates = delete_templates(names, clients)
    progress(f"{instances} instances ended, {templates} launch templates deleted")
    return DrainReport(instances, templates)


def find_leftovers(names: Names, clients: Clients) -> list[str]:
    """Return what AWS still lists with the cluster's tag, except instances that have ended: it
    shows them for an hour.
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
        arn for arn in found if ":instance/" not in arn or arn.rpartition("/")[2] in living
    )


def _refuse_protected(names: Names, clients: Clients) -> None:
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


def _stop_tick(names: Names, clients: Clients, progress: Progress) -> float:
    """Prevent further ticks; return for how many seconds a running one may still launch."""
    tick = names.part("tick")
    try:
        clients("lambda").put_function_concurrency(
            FunctionName=tick, ReservedConcurrentExecutions=0
        )
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return 0.0
        raise
    progress(f"the function {tick} is stopped: nothing will be launched")
    return SIZES["tick"].seconds_max + VISIBLE_SECONDS
