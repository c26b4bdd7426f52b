"""Notifications of alarms, and the interface for sending notifications.

Hosts implement `Notifier`: AWS publishes to a topic, Google Cloud and a laptop write a log line.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from control_plane.alarms.transitions import Change

SUBJECT_CHARACTERS_MAX = 100

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlarmNotification:
    """A notification that an alarm was raised or cleared."""

    cluster: str
    """The id of the cluster."""
    alarm: str
    """The name of the alarm."""
    pool: str
    """The pool, or "" for the cluster as a whole."""
    change: Change
    text: str
    """What was found, as a sentence without a full stop."""
    raised_ms: int
    """The time at which the alarm was raised, in epoch ms. With cluster, alarm and pool, it
    identifies the alarm, so that receivers can ignore a repeated notification.
    """
    runbook: str
    """The place of the alarm's page in the runbook, or the command that prints the page."""

    @property
    def subject(self) -> str:
        """A line of at most SUBJECT_CHARACTERS_MAX characters, in ASCII without control characters.

        Amazon SNS accepts no other subjects.
        """
        place = f" in pool {self.pool}" if self.pool else ""
        line = f"{self.cluster}: alarm {self.alarm} {self.change}{place}"
        printable = "".join(letter if " " <= letter <= "~" else "?" for letter in line)
        return printable[:SUBJECT_CHARACTERS_MAX]

    @property
    def body(self) -> str:
        """The text of the notification: the subject, the finding, and the runbook's page."""
        found = self.text if self.change == "raised" else f"no longer true: {self.text}"
        return f"{self.subject}\n\n{found}\n\nRunbook: {self.runbook}\n"


class NotificationFailed(Exception):
    """A notification was not accepted. The cluster sends it again later."""


class Notifier(Protocol):
    """The way in which notifications of alarms leave the cluster."""

    def notify(self, notification: AlarmNotification) -> None:
        """Send a notification, and return after the receiver accepted the notification.

        A notification may be sent again if the caller was killed after an earlier call. Raises
        NotificationFailed if the notification was not accepted, or may not have been.
        """


class LogNotifier:
    """A notifier that writes a warning to the log, for hosts without a service for messages."""

    def notify(self, notification: AlarmNotification) -> None:
        """Log the notification. A raised alarm is a warning, a cleared alarm is information."""
        level = logging.WARNING if notification.change == "raised" else logging.INFO
        place = f" in pool {notification.pool}" if notification.pool else ""
        log.log(
            level,
            "alarm %s %s%s: %s (%s)",
            notification.alarm,
            notification.change,
            place,
            notification.text,
            notification.runbook,
        )
