"""Rules of an experiment's lifecycle that differ between the step era and the length era."""

from dataclasses import dataclass

from control_plane.actors.records import Status


@dataclass(frozen=True, slots=True)
class LifecycleRules:
    """The lifecycle rules of one era; every experiment carries them."""

    # What an experiment becomes when it is killed.
    killed: Status
    # Killing an experiment that has ended is refused as not found; otherwise it changes nothing.
    kill_needs_live: bool
    # Canceling an experiment that has ended is refused; otherwise it changes nothing.
    cancel_needs_running: bool
    # An experiment that has ended has no progress; otherwise a completed one has all of it.
    progress_cleared: bool
    # As in TrialSettings; `preempt_ms` is the default of configurations that name none.
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
