"""Notifications of alarms through Cloud Logging: an alert policy of the stack matches the lines."""

import logging

from control_plane.alarms.notifications import AlarmNotification

log = logging.getLogger(__name__)


class CloudLogNotifier:
    """A notifier that writes a line with the fields that the alert policy `errors` extracts.

    Cloud Run stores what a function wrote to its standard output, also if the function then fails.
    """

    def notify(self, notification: AlarmNotification) -> None:
        """Write the line of a notification: a warning if raised, and information if cleared."""
        level = logging.WARNING if notification.change == "raised" else logging.INFO
        fields = {
            "alarm": notification.alarm,
            "change": notification.change,
            "pool": notification.pool,
            "raised_ms": notification.raised_ms,
            "runbook": notification.runbook,
        }
        text = f"{notification.subject}: {notification.text}"
        log.log(level, "%s", text, extra={"fields": fields})
