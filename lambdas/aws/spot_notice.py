"""The function behind EC2's own warnings, a second source beside the agent:
`lambdas.aws.spot_notice.handler`.
"""

from typing import Any

from control_plane.fleet.notices import record_notice
from control_plane.fleet.rows import has_instance
from lambdas.aws.adapters import adapters, cluster
from lambdas.aws.clients import lazy_client
from lambdas.aws.instance_warnings import read_warning
from lambdas.aws.telemetry import Telemetry
from lambdas.clock import now_ms

telemetry = Telemetry("spot_notice")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Store what is announced of the cluster's own instances; a new row wakes the tick, which sees
    to a replacement.
    """
    table, what = cluster.engine.table, event["detail-type"]
    for notice in read_warning(event, adapters.cluster_id, lazy_client("ec2")):
        # EC2 warns of everybody's in the account. One of a launch whose answer was lost has no
        # row yet: its agent hears the same, and EC2's lists tell it to the pass that writes it.
        if not has_instance(table, notice.instance):
            telemetry.log_line("warned of an instance that is not in the books", what=what)
            continue
        is_news = record_notice(table, notice, now_ms())
        telemetry.log_line("announced", instance=notice.instance, what=what, is_news=is_news)
