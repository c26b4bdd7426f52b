"""The function behind the trigger on new mail: `lambdas.gcp.advance:app`."""

import logging

from lambdas.gcp.adapters import adapters, cluster
from lambdas.gcp.function import AGAIN, DONE, REFUSED, Call, Function
from lambdas.gcp.row_events import NotAnEvent, new_row_path
from lambdas.gcp.telemetry import Telemetry
from lambdas.receivers import NotAdvanced, advance_receiver

log = logging.getLogger(__name__)
telemetry = Telemetry("advance")


def handle(call: Call) -> int:
    """Advance the actor that a message went to; an event that failed comes again."""
    try:
        path = new_row_path(call.headers, "advance")
    except NotAnEvent as error:
        log.error("refused: %s", error)
        return REFUSED
    # A message that is gone was consumed.
    key = adapters.state_table.find_key(path)
    try:
        had_mail = key is not None and advance_receiver(cluster.engine, key.partition, call.left_ms)
    except NotAdvanced:
        return AGAIN
    telemetry.log_line("served", actor=key.partition if key else "", had_mail=had_mail)
    return DONE


app = Function(telemetry, handle)
