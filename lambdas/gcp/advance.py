"""The function for new mail, called by a trigger on new documents: `lambdas.gcp.advance:app`."""

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
    """Advance the receiver of the new message that an event reports; return the HTTP status.

    DONE: the receiver was advanced, or the message's row no longer exists. REFUSED, with a logged
    error: the call is not an event of a new message. AGAIN: no time is left or the state table
    failed, and Eventarc must deliver the event again. Raises TableError if the row's key cannot be
    read.
    """
    try:
        path = new_row_path(call.headers, "advance")
    except NotAnEvent as error:
        log.error("refused a call that is not the event of a new row: %s", error)
        return REFUSED
    # A message without a row was consumed.
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
    """Return the seconds to wait, because the message's sender may still advance the receiver.

    The time is at most SENDER_SECONDS, and 0 if the headers contain no time of the event.
    """
    return seconds_of_sender(headers, time.time())


app = Function(telemetry, handle, pause=wait_for_sender)
