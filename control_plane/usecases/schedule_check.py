"""The check of the section `schedule` in a submitted configuration."""

from control_plane.config.experiment import ExperimentConfig
from control_plane.errors import invalid
from detcloud.shared.schedule_refusal import SCHEDULED_ALONE


def without_schedule(config: ExperimentConfig, may_be_scheduled: bool) -> ExperimentConfig:
    """Check the section `schedule`, and return the configuration without the section.

    Return the configuration itself if the section is missing.

    Args:
        config: the checked configuration.
        may_be_scheduled: whether the submission accepts the section.

    Raises:
        RequestError: invalid, if the expression or the time zone cannot be read, or the submission
            does not accept the section.
    """
    section = config.schedule
    if section is None:
        return config
    # Few submissions have a schedule, and both imports take 30 ms (bench/cold_starts.py).
    from control_plane.cron_times import CronInvalid, CronTimes, ZoneUnknown

    try:
        CronTimes(section.cron, section.time_zone)
    except CronInvalid as error:
        raise invalid("schedule.cron", str(error)) from None
    except ZoneUnknown as error:
        raise invalid("schedule.time_zone", str(error)) from None
    if not may_be_scheduled:
        raise invalid("schedule", SCHEDULED_ALONE, "POST /schedules stores a schedule")
    return config.model_copy(update={"schedule": None})
