"""The thresholds of the cluster's alarms as texts for users. Pure."""

from control_plane.alarms import kinds
from control_plane.alarms.conditions import boots_text, time_text
from control_plane.config.alarms import Alarms


def threshold_text(alarm: str, settings: Alarms) -> str:
    """Return the configured threshold of an alarm, or "" for an alarm of a newer version.

    The texts have the form of `Finding.value`, so that users can compare both.
    """
    cost = f"{settings.hourly_cost_factor:g} times the most expensive hour of the week before"
    texts = {
        kinds.FAILED_BOOTS.name: boots_text(settings.failed_boots),
        kinds.QUEUE_WAIT.name: time_text(settings.queue_wait),
        kinds.MACHINE_AGE.name: time_text(settings.machine_age),
        kinds.HOURLY_COST.name: f"{cost}, and {settings.hourly_cost_minimum:g} $ an hour",
        kinds.LAG.name: f"{time_text(settings.lag)} in two checks",
    }
    return texts.get(alarm, "")
