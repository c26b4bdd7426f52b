"""The activity of an experiment: a sentence, the reason of a wait, and the expected end."""

from typing import NamedTuple

from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.records import JobKind, Status
from control_plane.queries.answer import Answer
from control_plane.queries.conditions import ExperimentCondition, experiment_condition
from control_plane.queries.experiment import get_experiment
from control_plane.queries.job import describe_job
from control_plane.queries.job_counts import JobCounts, read_job_counts
from control_plane.services import Services
from detcloud.shared.plurals import count_text

# A smaller progress says too little about the pace.
PROGRESS_MIN = 0.02


class Activity(Answer):
    """The activity of an experiment; docs/api.md describes the fields."""

    condition: ExperimentCondition
    sentence: str
    reason: str
    waits_since_ms: int | None
    expected_start_ms: int | None
    expected_end_ms: int | None


class _Wait(NamedTuple):
    """The wait of an experiment's trials for slots."""

    reason: str = ""
    since_ms: int | None = None
    """The start of the wait, in epoch ms, or None."""
    start_ms: int | None = None
    """The expected start of the next trial, in epoch ms, or None."""


def describe_activity(services: Services, experiment_id: int) -> Activity:
    """Return the activity of an experiment, command, notebook or shell.

    For an active experiment, the queue of the pool is read.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted; unavailable, if
            the pool changes too fast to be read.
    """
    state, _ = get_experiment(services, experiment_id)
    counts, wait = JobCounts(), _Wait()
    if state.status is Status.ACTIVE:
        counts = read_job_counts(services, {experiment_id: state.pool}).get(experiment_id, counts)
        if counts.queued:
            job = describe_job(services, experiment_id)
            wait = _Wait(job.waits, job.waits_since_ms, job.expected_start_ms)
    condition = experiment_condition(state.status, **counts._asdict())
    return Activity(
        condition=condition,
        sentence=activity_sentence(state, condition, counts),
        reason=wait.reason,
        waits_since_ms=wait.since_ms,
        expected_start_ms=wait.start_ms,
        expected_end_ms=expected_end_ms(state, condition, services.now_ms()),
    )


def activity_sentence(
    state: ExperimentState, condition: ExperimentCondition, counts: JobCounts
) -> str:
    """Return a sentence for users, without the reason of a wait: `2 trials run, 1 waits for slots`.

    Args:
        state: the experiment's state.
        condition: the experiment's condition.
        counts: the allocations of the experiment.
    """
    if condition in ("running", "queued", "waiting"):
        return _active_sentence(state, counts)
    if condition == "paused":
        return f"no trial runs: the {state.kind} is paused"
    if condition == "stopping":
        return f"the last trials are ending: {count_text(state.trials_open, 'trial')}"
    ended = f"{state.trials_completed} of {count_text(state.trials, 'trial')} completed"
    failed = f", {state.trials_errored} failed" if state.trials_errored else ""
    return f"the {state.kind} is over: {ended}{failed}"


def expected_end_ms(
    state: ExperimentState, condition: ExperimentCondition, now_ms: int
) -> int | None:
    """Return the time at which a running search is expected to end, in epoch ms.

    The pace is the mean since the submission, waits and pauses included. Return None for commands,
    notebooks and shells, for a continued experiment, before PROGRESS_MIN, and if no trial runs.
    """
    progress = state.progress or 0.0
    if condition != "running" or state.kind is not JobKind.EXPERIMENT or state.run_generation:
        return None
    if not PROGRESS_MIN <= progress < 1:
        return None
    return now_ms + round((now_ms - state.created_ms) * (1 - progress) / progress)


def _active_sentence(state: ExperimentState, counts: JobCounts) -> str:
    """Return the numbers of an active experiment's trials that run and wait."""
    others = max(0, state.trials_open - counts.running - counts.queued)
    texts = [
        (counts.running, "runs", "run"),
        (counts.queued, "waits for slots", "wait for slots"),
        (others, "waits for the search", "wait for the search"),
    ]
    parts = [f"{count} {one if count == 1 else more}" for count, one, more in texts if count]
    if not parts:
        return "the search has no trials yet"
    number, _, rest = parts[0].partition(" ")
    return ", ".join([f"{count_text(int(number), 'trial')} {rest}", *parts[1:]])
