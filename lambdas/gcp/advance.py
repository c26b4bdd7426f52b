"""The function behind the trigger on new mail: `lambdas.gcp.advance:app`."""

import logging
import time
from collections.abc import Mapping

from lambdas.gcp.adapters import adapters, cluster
from lambdas.gcp.function import AGAIN, DONE, REFUSED, Call, Function
from lambdas.gcp.row_events import NotAnEvent, new_row_path, seconds_of_sender
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
        if key is not None:
            advance_receiver(cluster.engine, key.partition, call.left_ms, looks_first=False)
    except NotAdvanced:
        return AGAIN
    actor = "" if key is None else key.partition
    telemetry.log_line("served", actor=actor, had_mail=key is not None)
    return DONE


def wait_for_sender(headers: Mapping[str, str]) -> float:
    """Return for how long the sender of the message may be about to do all that is to be done."""
    return seconds_of_sender(headers, time.time())


app = Function(telemetry, handle, pause=wait_for_sender)
