"""EC2's warnings about instances, as notices."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from control_plane.fleet.notices import InstanceNotice
from provisioner.clouds.provider import CLUSTER_TAG

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
BLOCK_ENDS = "Capacity Block Reservation Expiration Warning"
# EC2 warns two minutes before it takes an instance away.
WARNING_MS = 120_000
# So long before a capacity block's end it begins to end what is in it.
BLOCK_MARGIN_MS = 30 * 60_000


def read_warning(event: Mapping[str, Any], cluster: str, ec2: Any) -> list[InstanceNotice]:
    """Return the notices of an event. That of a capacity block names no instance: they are those
    that `ec2`, boto3's client, finds with the cluster's tag. Raises ValueError for another event.
    """
    what, detail = event["detail-type"], event["detail"]
    if what == BLOCK_ENDS:
        ends_ms = _epoch_ms(detail["end-date"]) - BLOCK_MARGIN_MS
        found = _instances_in(detail["capacity-reservation-id"], cluster, ec2)
        return [InstanceNotice(instance, ends_ms) for instance in found]
    if what == REBALANCE:
        return [InstanceNotice(detail["instance-id"])]
    if what == INTERRUPTION:
        return [InstanceNotice(detail["instance-id"], _epoch_ms(event["time"]) + WARNING_MS)]
    raise ValueError(f"an event of the type {what!r} is none that we asked for")


def _instances_in(reservation: str, cluster: str, ec2: Any) -> list[str]:
    wanted = {
        f"tag:{CLUSTER_TAG}": [cluster],
        "capacity-reservation-id": [reservation],
        "instance-state-name": ["pending", "running"],
    }
    filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
    return [
        str(instance["InstanceId"])
        for page in ec2.get_paginator("describe_instances").paginate(Filters=filters)
        for group in page["Reservations"]
        for instance in group["Instances"]
    ]


def _epoch_ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
