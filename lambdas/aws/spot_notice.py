"""The function behind EC2's own warnings, a second source beside the agent:
`lambdas.aws.spot_notice.handler`.
"""

from datetime import datetime
from typing import Any

from control_plane.fleet.notices import InstanceNotice, record_notice
from control_plane.fleet.rows import has_instance
from lambdas.aws.adapters import adapters, cluster
from lambdas.aws.clients import lazy_client
from lambdas.aws.telemetry import Telemetry
from lambdas.clock import now_ms
from provisioner.clouds.provider import CLUSTER_TAG

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
BLOCK_ENDS = "Capacity Block Reservation Expiration Warning"
# EC2 warns two minutes before it takes an instance away.
WARNING_MS = 120_000
# So long before a capacity block's end it begins to end what is in it.
BLOCK_MARGIN_MS = 30 * 60_000

telemetry = Telemetry("spot_notice")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Store what is announced of the cluster's own instances; a new row wakes the tick, which sees
    to a replacement.
    """
    what, detail = event["detail-type"], event["detail"]
    if what == BLOCK_ENDS:
        ends_ms = _epoch_ms(detail["end-date"]) - BLOCK_MARGIN_MS
        for instance in _instances_in(detail["capacity-reservation-id"]):
            _announce(InstanceNotice(instance, ends_ms), what)
        return
    if what not in (INTERRUPTION, REBALANCE):
        raise ValueError(f"an event of the type {what!r} is none that we asked for")
    deadline_ms = _epoch_ms(event["time"]) + WARNING_MS if what == INTERRUPTION else None
    _announce(InstanceNotice(detail["instance-id"], deadline_ms), what)


def _announce(notice: InstanceNotice, what: str) -> None:
    table = cluster.engine.table
    # EC2 warns of everybody's in the account. One of a launch whose answer was lost has no row
    # yet: its agent hears the same, and EC2's own lists tell it to the pass that writes the row.
    if not has_instance(table, notice.instance):
        telemetry.log_line("warned of an instance that is not in the books", what=what)
        return
    is_news = record_notice(table, notice, now_ms())
    telemetry.log_line("announced", instance=notice.instance, what=what, is_news=is_news)


def _instances_in(reservation: str) -> list[str]:
    """Return the cluster's instances in a capacity reservation; the event names none."""
    wanted = {
        f"tag:{CLUSTER_TAG}": adapters.cluster_id,
        "capacity-reservation-id": reservation,
        "instance-state-name": ["pending", "running"],
    }
    filters = [
        {"Name": name, "Values": [it] if isinstance(it, str) else it} for name, it in wanted.items()
    ]
    pages = lazy_client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [
        str(instance["InstanceId"])
        for page in pages
        for group in page["Reservations"]
        for instance in group["Instances"]
    ]


def _epoch_ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
