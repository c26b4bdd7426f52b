"""The function for EC2's warnings about instances: `lambdas.aws.spot_notice.handler`.

EventBridge calls the function. The agent of an instance reports the same warning independently.
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
    """Store an EC2 warning about an instance or a capacity block as a row of `notices`.

    Skip an instance without a row in the cluster. A notice of the same kind that is already stored
    stays unchanged. A new notice wakes the tick, which notifies agents and launches replacements.
    Write a log line in each case, and return None. Raises ValueError or KeyError for an unexpected
    event, and TableError.
    """
    table, what = cluster.engine.table, event["detail-type"]
    notice = read_warning(event)
    # EventBridge delivers warnings for every instance in the account; skip instances without a
    # row. After a lost launch response, an instance has no row yet: its agent receives the warning
    # as well, and the next provisioner pass finds the instance in EC2's list. Rows do not
    # record the owner of a capacity block, so the tick looks the block up in EC2's list, also for
    # instances that are launched into the block later.
    is_block = what == BLOCK_ENDS
    if not is_block and not has_instance(table, notice.instance):
        telemetry.log_line("notice for an unknown instance", what=what)
        return
    is_news = record_notice(table, notice, now_ms())
    instance = "those in a capacity block" if is_block else notice.instance
    telemetry.log_line("announced", instance=instance, what=what, is_news=is_news)
