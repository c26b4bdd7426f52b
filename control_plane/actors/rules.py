"""What differs between the two eras in the life of an experiment, as data."""

from dataclasses import dataclass

from control_plane.actors.records import Status


@dataclass(frozen=True, slots=True)
class LifecycleRules:
    """The rules of one era; every experiment carries them."""

    # What an experiment becomes when it is killed.
    killed: Status
    # Only an experiment that has not ended can be killed; otherwise there is nothing to find.
    kill_needs_live: bool
    # Only an experiment that does not end already can be canceled.
    cancel_needs_running: bool
    # An experiment that has ended has no progress; otherwise a completed one has all of it.
    progress_cleared: bool
    # See TrialSettings; `preempt_ms` where the configuration names none.
    terminate_ms: int | None
    preempt_ms: int | None = None


STEP_ERA = LifecycleRules(
    killed=Status.STOPPING_CANCELED,
    kill_needs_live=True,
    cancel_needs_running=True,
    progress_cleared=True,
    terminate_ms=60_000,
    preempt_ms=3_600_000,
)
LENGTH_ERA = LifecycleRules(
    killed=Status.STOPPING_KILLED,
    kill_needs_live=False,
    cancel_needs_running=False,
    progress_cleared=False,
    terminate_ms=None,
    preempt_ms=3_600_000,
)
