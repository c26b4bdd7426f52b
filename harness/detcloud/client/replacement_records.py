"""Answers of the cluster about lost runs and their replacements.

Times are epoch milliseconds.
"""

from __future__ import annotations

from typing import TypedDict


class Loss(TypedDict):
    """A run that was lost with the agent or machine. A loss is no failure of the trial."""

    time_ms: int
    """The time of the loss."""
    agent_id: str
    """The id of the lost agent."""
    cause: str
    """The cause as text, such as `spot interruption`."""


class Damage(TypedDict):
    """A checkpoint that was found damaged when a run tried to start from the checkpoint."""

    time_ms: int
    """The time at which the damage was found."""
    uuid: str
    """The UUID of the damaged checkpoint."""
    steps_completed: int
    """The batches of the damaged checkpoint."""
    cause: str
    """The difference as text."""
    instead: str | None
    """The checkpoint that the run started from, or None if the trial had no other of its own."""
    instead_steps: int
    """The batches of the checkpoint that the run started from; 0 without one."""


class LogMatch(TypedDict):
    """A line of a run's log that matched a log policy."""

    time_ms: int
    """The time of the report."""
    epoch: int
    """The number of the run within the trial, from 1."""
    policy: str
    """The name of the policy, or its pattern if it has no name."""
    line: str
    """The beginning of the line."""
    actions: list[str]
    """The actions of the policy, `cancel_retries` or `exclude_node`."""
    signal: str
    """The signal of the policy; empty without a signal."""
    agent_id: str
    """The agent of the process; empty if the agent is unknown."""
    rank: int
    """The rank of the process; 0 if unknown."""


class PhaseDuration(TypedDict):
    """The duration of a phase of a replacement."""

    phase: str
    """The name of the phase, such as `boot`. docs/spot.md describes the phases."""
    duration_ms: int
    """The duration in milliseconds."""


class Replacement(TypedDict):
    """The way of a trial from the loss of slots to the first step of a later run."""

    experiment_id: int
    """The id of the experiment."""
    trial_id: int
    """The id of the trial."""
    cause: str
    """`notice`, `loss` or `preemption`."""
    reason: str
    """The reason of the notice, loss or preemption as text."""
    from_epoch: int
    """The number of the run that lost its slots."""
    from_agent_id: str
    """The id of the agent that the run left."""
    epoch: int
    """The number of the run that trains again, or that waits or starts."""
    agent_ids: list[str]
    """The ids of the agents of the later run."""
    begun_ms: int
    """The begin of the time without training."""
    ended_ms: int | None
    """The time of the first step, or None before it."""
    attempts: int
    """The number of runs in between that ended before their first step."""
    duration_ms: int
    """The duration, up to now for a replacement without an end."""
    phases: list[PhaseDuration]
    """The known phases in order. Their sum is `duration_ms`."""
    has_first_step: bool
    """Whether the later run reported its first step."""
    early_pull_failure: str
    """Why the machine could not pull the image before the assignment, or empty."""


class PhaseSum(TypedDict):
    """A phase over several replacements. The phase `total` is the whole replacement."""

    phase: str
    """The name of the phase."""
    count: int
    """The number of replacements with the phase."""
    median_ms: int
    """The median duration in milliseconds."""
    p90_ms: int
    """The duration that 90 % of the replacements do not exceed."""


class CauseSum(TypedDict):
    """The replacements of a pool or an experiment with a cause."""

    cause: str
    """`notice`, `loss` or `preemption`."""
    count: int
    """The number of replacements."""
    unmeasured: int
    """The number of further replacements whose run did not report its first step."""
    phases: list[PhaseSum]
    """The durations of each phase."""


class ExperimentReplacements(TypedDict):
    """The sums of an experiment's replacements."""

    experiment_id: int
    """The id of the experiment."""
    since_ms: int
    """The time of the submission, or the end of the earliest summed replacement."""
    is_cut: bool
    """Whether only the latest 1,000 replacements are summed."""
    causes: list[CauseSum]
    """The sums for each cause."""
    latest: list[Replacement]
    """The latest replacements, the newest first."""


class ReplacementSums(TypedDict):
    """The sums of a pool's replacements."""

    resource_pool: str
    """The name of the pool."""
    since_ms: int
    """The begin of the period, or the end of the earliest summed replacement."""
    is_cut: bool
    """Whether only the latest 1,000 replacements are summed."""
    causes: list[CauseSum]
    """The sums for each cause."""
    latest: list[Replacement]
    """The latest replacements, the newest first."""
