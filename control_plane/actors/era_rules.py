"""Rules of the lifecycle that differ between experiments of the step era and the length era."""

from dataclasses import dataclass

from control_plane.actors.records import Status


@dataclass(frozen=True, slots=True)
class LifecycleRules:
    """The lifecycle rules of an era. The state of every experiment contains its rules."""

    killed: Status
    """The status of an experiment after its kill."""
    kill_needs_live: bool
    """Whether a kill of an ended experiment is refused as not found. If False, it changes nothing.
    """
    cancel_needs_running: bool
    """Whether a cancellation of an ended experiment is refused. If False, it changes nothing."""
    progress_cleared: bool
    """Whether an ended experiment has no progress. If False, a completed one has a progress of 1.
    """
    terminate_ms: int | None
    """The value of `TrialSettings.terminate_ms`."""
    preempt_ms: int | None = None
    """The value of `TrialSettings.preempt_ms` for configurations that name none."""


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
