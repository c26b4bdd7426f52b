"""Notices to systemd about the state of this process (sd_notify(3))."""

import logging
import os
import socket

log = logging.getLogger(__name__)

SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify_systemd(state: str) -> None:
    """Send a state, for example `READY=1`, to systemd. An error is logged.

    Do nothing if systemd did not start the process in a unit of `Type=notify`.
    """
    place = os.environ.get(SOCKET_VARIABLE, "")
    if not place:
        return
    # A leading @ stands for the null byte of an abstract socket.
    address = f"\0{place[1:]}" if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notices:
            notices.sendto(state.encode(), address)
    except OSError as error:
        log.warning("systemd was not told %s: %s", state, error)
