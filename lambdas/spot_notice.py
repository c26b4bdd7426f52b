"""The function behind EC2's own warnings, a second witness beside the agent:
`lambdas.spot_notice.handler`.
"""

from datetime import datetime
from typing import Any

from control_plane.fleet.notices import Announcement, announce
from control_plane.fleet.rows import has_instance
from lambdas.clock import now_ms
from lambdas.deployed import engine
from lambdas.telemetry import Telemetry

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
# EC2 warns two minutes before it takes an instance away.
WARNING_MS = 120_000

telemetry = Telemetry("spot_notice")


@telemetry.told
def handler(event: Any, context: Any) -> Any:
    """Keeps what is announced of the cluster's own instances; a new row wakes the tick, which sees
    to a replacement.
    """
    instance, what = event["detail"]["instance-id"], event["detail-type"]
    if what not in (INTERRUPTION, REBALANCE):
        raise ValueError(f"an event of the type {what!r} is none that we asked for")
    # EC2 warns of everybody's in the account. One of a launch whose answer was lost is not in the
    # books yet: its agent hears the same, and EC2's own lists tell it to the pass that writes it.
    if not has_instance(engine().table, instance):
        telemetry.said("warned of an instance that is not in the books", what=what)
        return
    said_ms = int(datetime.fromisoformat(event["time"]).timestamp() * 1000)
    deadline_ms = said_ms + WARNING_MS if what == INTERRUPTION else None
    is_news = announce(engine().table, Announcement(instance, deadline_ms), now_ms())
    telemetry.said("announced", instance=instance, what=what, is_news=is_news)
