"""The function behind EC2's own warnings, a second source beside the agent:
`lambdas.aws.spot_notice.handler`.
"""

from typing import Any

from control_plane.fleet.notices import record_notice
from control_plane.fleet.rows import has_instance
from lambdas.aws.adapters import cluster
from lambdas.aws.instance_warnings import BLOCK_ENDS, read_warning
from lambdas.aws.telemetry import Telemetry
from lambdas.clock import now_ms

telemetry = Telemetry("spot_notice")


@telemetry.wrap_handler
def handler(event: Any, context: Any) -> Any:
    """Store warnings about the cluster's instances and capacity blocks.

    A new row wakes the tick, which notifies agents and launches replacements.
    """
    table, what = cluster.engine.table, event["detail-type"]
    notice = read_warning(event)
    # EC2 warns of everybody's in the account. One of a launch whose answer was lost has no row yet:
    # its agent hears the same, and EC2's lists tell it to the pass that writes it. Whose a block is
    # no row says: the tick compares it with what EC2 lists, also of what is launched until its end.
    is_block = what == BLOCK_ENDS
    if not is_block and not has_instance(table, notice.instance):
        telemetry.log_line("notice for an unknown instance", what=what)
        return
    is_news = record_notice(table, notice, now_ms())
    instance = "those in a capacity block" if is_block else notice.instance
    telemetry.log_line("announced", instance=instance, what=what, is_news=is_news)
