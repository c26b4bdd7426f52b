"""The function behind EC2's own warnings, a second source beside the agent:
`lambdas.aws.spot_notice.handler`.
"""

from datetime import datetime
from typing import Any

from control_plane.fleet.notices import InstanceNotice, record_notice
from control_plane.fleet.rows import has_instance
from lambdas.aws.adapters import cluster
from lambdas.aws.telemetry import Telemetry
from lambdas.clock import now_ms

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
# EC2 warns two minutes before it takes an instance away.
WARNING_MS = 120_000

telemetry = Telemetry("spot_notice")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Store what is announced of the cluster's own instances; a new row wakes the tick, which sees
    to a replacement.
    """
    table = cluster.engine.table
    instance, what = event["detail"]["instance-id"], event["detail-type"]
    if what not in (INTERRUPTION, REBALANCE):
        raise ValueError(f"an event of the type {what!r} is none that we asked for")
    # EC2 warns of everybody's in the account. One of a launch whose answer was lost has no row
    # yet: its agent hears the same, and EC2's own lists tell it to the pass that writes the row.
    if not has_instance(table, instance):
        telemetry.log_line("warned of an instance that is not in the books", what=what)
        return
    said_ms = int(datetime.fromisoformat(event["time"]).timestamp() * 1000)
    deadline_ms = said_ms + WARNING_MS if what == INTERRUPTION else None
    is_news = record_notice(table, InstanceNotice(instance, deadline_ms), now_ms())
    telemetry.log_line("announced", instance=instance, what=what, is_news=is_news)
