"""Answers of the cluster that are not handles: typed dictionaries with the fields of the API.

Times are epoch milliseconds, sizes bytes, steps batches, costs dollars.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Pool(TypedDict):
    """The slots and trials of a resource pool."""

    name: str
    """The name of the pool."""
    slots: int
    """Slots of usable agents."""
    free_slots: int
    """Slots without an allocation."""
    queued: int
    """Allocations that wait for slots."""
    running: int
    """Allocations that have slots."""
    agents: int
    """The number of agents."""


class Overview(TypedDict):
    """The cluster's identity and resource pools."""

    cluster_id: str
    """The id of the cluster."""
    version: str
    """The version of detcloud on the cluster."""
    resource_pools: list[Pool]
    """All pools."""


class Activity(TypedDict):
    """The activity of an experiment."""

    condition: str
    """The word for the state, such as `queued`."""
    sentence: str
    """For example `2 trials run, 1 waits for slots`."""
    reason: str
    """The reason why trials wait for slots; empty if no trial waits for slots."""
    waits_since_ms: int | None
    """The begin of the wait for slots, epoch milliseconds; None without a wait."""
    expected_start_ms: int | None
    """The expected start of the next waiting trial, epoch milliseconds; None if unknown."""
    expected_end_ms: int | None
    """The expected end of a running search, epoch milliseconds; None if unknown."""


class PoolChange(TypedDict):
    """The effect of a cluster configuration file on a pool."""

    resource_pool: str
    """The name of the pool."""
    action: str
    """`create`, `change`, `remove` or `keep`."""
    fields: list[str]
    """The paths of the settings that change."""


class AppliedConfiguration(TypedDict):
    """The changes that a cluster configuration file made, or with `dry_run` would make."""

    changes: list[PoolChange]
    """The effect on each pool."""
    shared: list[str]
    """The paths of the changed settings that all pools share."""
    warnings: NotRequired[list[str]]
    """The settings of pools that have no effect. Earlier clusters send no warnings."""
    dry_run: bool
    """Whether the changes were only computed."""


class Identity(TypedDict):
    """The user and the role of a token."""

    user: str
    """The name of the user."""
    role: str
    """`user` or `admin`."""


class RungTrial(TypedDict):
    """A trial's entry in a rung."""

    id: int
    """The id of the trial."""
    number: int
    """The trial's number within the experiment, from 0."""
    metric: float | None
    """The validation metric at the rung's length, or None without a result."""
    outcome: str
    """For example `promoted`, `stopped` or `training`."""


class Rung(TypedDict):
    """A rung: the trials of a bracket that were compared at the same length."""

    number: int
    """The number of the rung in the bracket, from 0."""
    length: int
    """The training length at which trials are compared, in the unit of the Rungs."""
    reached: int
    """The number of trials that have reached this length."""
    outcomes: dict[str, int]
    """The number of trials by outcome."""
    best_metric: float | None
    """The best metric in this rung, or None without a result."""
    trials: list[RungTrial]
    """The best trials, best first."""


class Bracket(TypedDict):
    """A group of trials that are compared with each other."""

    rungs: list[Rung]
    """The rungs by ascending length."""


class Rungs(TypedDict):
    """The brackets of a search."""

    unit: str
    """The unit of lengths, such as `batches`."""
    metric: str
    """The name of the searcher's metric."""
    smaller_is_better: bool
    """Whether small values of the metric are best."""
    brackets: list[Bracket]
    """Empty if the searcher does not compare trials at rungs."""


class NoticeCounts(TypedDict):
    """The number of interruption notices for machines of trials, by the trials' reaction."""

    saved: int
    """The trial stored a checkpoint that it began after the notice."""
    finished: int
    """The trial finished storing a checkpoint that it had begun before the notice."""
    kept: int
    """The trial left without storing a checkpoint."""
    cut: int
    """The machine ended before the trial left."""


class TrialCounts(TypedDict):
    """The number of an experiment's trials by state."""

    requested: int
    """All trials that the search has requested so far."""
    running: int
    """Trials that have not ended."""
    completed: int
    """Trials that completed."""
    errored: int
    """Trials that failed."""


class Place(TypedDict):
    """Slots of a single agent."""

    agent_id: str
    """The id of the agent."""
    slots: list[int]
    """The numbers of the slots on the agent."""


class Allocation(TypedDict):
    """The slots of a trial."""

    id: str
    """The id: the trial's id, a dot, and the number of the run."""
    state: str
    """`PENDING`, `ASSIGNED`, `PULLING`, `STARTING`, `RUNNING` or `TERMINATING`."""
    places: list[Place]
    """One place for each agent, that of the chief first. Empty while the trial waits."""


class MetricReport(TypedDict):
    """A report of a trial's metrics."""

    group: str
    """The group, such as `training` or `validation`."""
    steps_completed: int
    """The number of batches after which the metrics were measured."""
    metrics: dict[str, Any]
    """The metrics by name."""
    time_ms: int
    """The time of the report, epoch milliseconds."""


class MetricSummary(TypedDict):
    """A summary of all reports of a numeric metric of a trial."""

    group: str
    """The group of the metric."""
    name: str
    """The name of the metric."""
    count: int
    """The number of reports."""
    last_steps: int
    """The batches completed at the last report."""
    last: float
    """The last value."""
    minimum: float
    """The smallest value."""
    maximum: float
    """The largest value."""
    mean: float
    """The mean of all values."""


class Series(TypedDict):
    """A curve of a numeric metric of a trial.

    The cluster thins curves by Largest-Triangle-Three-Buckets (Steinarsson, 2013), which keeps the
    shape.
    """

    group: str
    """The group of the metric."""
    name: str
    """The name of the metric."""
    points: list[tuple[int, float]]
    """Pairs of steps_completed and value."""
    total: int
    """The number of points before thinning."""


class TrialSeries(TypedDict):
    """The curve of a trial, as a part of ExperimentMetrics."""

    trial_id: int
    """The id of the trial."""
    points: list[tuple[int, float]]
    """Pairs of steps_completed and value."""
    total: int
    """The number of points before thinning."""


class ExperimentMetrics(TypedDict):
    """The curves of a metric, for an experiment's best trials."""

    group: str
    """The group of the metric."""
    name: str
    """The name of the metric."""
    series: list[TrialSeries]
    """One curve per trial, the best trial first."""


class LogLine(TypedDict):
    """A line of a trial's log."""

    offset: int
    """The byte at which the line begins, counted over all runs of the trial."""
    time_ms: int | None
    """None if the line has no known time."""
    rank: int
    """The process that wrote the line."""
    level: str | None
    """None if the line has no known level."""
    text: str
    """The line without its line end."""
    unfinished: bool
    """Whether the text is a part of the last line, which the next line continues."""


class HistoryEntry(TypedDict):
    """A change of an experiment or of a trial."""

    time_ms: int
    """The time of the change, epoch milliseconds."""
    actor: str
    """For example `experiment#3` or `trial#7`."""
    revision: int
    """The revision of the actor after the change."""
    text: str
    """The change as a sentence."""
    reasons: list[str]
    """The reasons for the change."""


class ReplayedActor(TypedDict):
    """The result of replaying an actor's journal."""

    actor: str
    """For example `experiment#3` or `trial#7`."""
    entries: int
    """The number of journal entries replayed."""
    difference: dict[str, Any] | None
    """The first difference between the replayed and the stored state, or None if both are equal."""


class CheckpointFile(TypedDict):
    """A file of a checkpoint."""

    path: str
    """The path within the checkpoint."""
    size: int
    """The size in bytes."""
    sha256: str
    """The SHA-256 of the content in hexadecimal."""
    url: str
    """A URL that serves the file for 15 minutes without a token."""


class EventFilePart(TypedDict):
    """A part of a TensorBoard file."""

    size: int
    """The size in bytes."""
    url: str
    """A URL that serves the part for 15 minutes without a token."""


class EventFile(TypedDict):
    """A TensorBoard file. Its content is the concatenation of the parts."""

    path: str
    """The path within the folder of event files."""
    size: int
    """The size in bytes."""
    version: str
    """While the version stays the same, the file has only grown."""
    parts: list[EventFilePart]
    """The parts in order."""


class CheckpointPlace(TypedDict):
    """The place where a checkpoint is stored."""

    uuid: str
    """The UUID of the checkpoint."""
    path: str
    """The checkpoint's folder in the store."""
    storage: dict[str, str]
    """The type and the address of the store, without secrets."""


class CheckpointHolders(TypedDict):
    """The users, model versions and experiments that keep a checkpoint from being deleted."""

    users: list[str]
    """Users who pinned the checkpoint."""
    versions: list[str]
    """Model versions as `MODEL/NUMBER`."""
    experiments: list[int]
    """Ids of experiments that started from the checkpoint."""


class CheckpointPin(CheckpointHolders):
    """A checkpoint with all holders."""

    uuid: str
    """The UUID of the checkpoint."""


class FileFinding(TypedDict):
    """The result of verifying a file of a checkpoint."""

    path: str
    """The path within the checkpoint."""
    state: str
    """`OK`, `DAMAGED` or `MISSING`. `DENIED` if the store's answer hides whether the file exists.
    """
    problem: str
    """The reason if the state is not `OK`, otherwise empty."""


class CollectionPreview(TypedDict):
    """The checkpoints that a collection would delete and keep."""

    delete: list[dict[str, Any]]
    """The first 500 checkpoints to delete, as the API describes checkpoints."""
    delete_count: int
    """The number of checkpoints to delete."""
    delete_files: int
    """The number of files to delete, manifests included."""
    delete_bytes: int
    """The size of the files to delete."""
    delete_seconds: int
    """The duration of the deletion at the cluster's limit of deletions per second."""
    keep_count: int
    """The number of checkpoints to keep."""
    keep_bytes: int
    """The size of the files to keep."""


class DeletionPreview(TypedDict):
    """The effect of deleting a checkpoint."""

    uuid: str
    """The UUID of the checkpoint."""
    delete_files: int
    """The number of files to delete."""
    delete_bytes: int
    """The size of the files to delete."""
    delete_seconds: int
    """The duration of the deletion at the cluster's limit of deletions per second."""
    problem: str
    """The reason why the deletion would be refused, or empty."""


class CostItem(TypedDict):
    """The cost of an experiment, trial, user, pool or day, in dollars."""

    name: str
    """The id or name."""
    title: str
    """A text for users, such as an experiment's name."""
    cost: float
    """The cost of slots in use."""
    instance_cost: float | None
    """The cost of instances. None for items that no instance belongs to as a whole."""
    idle_cost: float | None
    """The part of `instance_cost` that no allocation used, or None like `instance_cost`."""


class CostReport(TypedDict):
    """The costs of the days from `since` to `until`, both included."""

    by: str
    """What an item stands for: `experiment`, `trial`, `user`, `pool` or `day`."""
    since: str
    """The first day, such as `2026-11-01`."""
    until: str
    """The last day."""
    items: list[CostItem]
    """The costs of each experiment, trial, user, pool or day."""
    total: CostItem
    """The sums of all items."""


class UsageItem(CostItem):
    """The cost and the use of slots. An item of a pool and a day has the pool as the title."""

    slot_hours: float
    """The time of allocations multiplied by their slots."""
    measured_hours: float
    """The part of `slot_hours` for which the use is known."""
    use_percent: float | None
    """The mean computation of the measured time. None without measured time."""
    memory_percent: float | None
    """The mean share of memory in the measured time. None without measured time."""
    low_cost: float
    """The part of `cost` for time with less than 5 % of computation."""
    wasted: float
    """The sum of `low_cost` and `idle_cost`."""


class UsageReport(TypedDict):
    """The use of slots on the days from `since` to `until`, both included."""

    by: str
    """What an item stands for, for example `experiment` or `pool-day`."""
    since: str
    """The first day, such as `2026-11-01`."""
    until: str
    """The last day."""
    items: list[UsageItem]
    """The use by each experiment, pool or day, for example."""
    total: UsageItem
    """The sums of all items."""


class UnrecordedCheckpoint(TypedDict):
    """A folder among an experiment's checkpoints that the cluster has no record of.

    When the experiment is deleted, complete folders of this cluster are deleted too. Other folders
    stay.
    """

    uuid: str
    """The UUID of the checkpoint."""
    trial_id: int
    """The id of the trial that wrote the folder."""
    experiment_id: int
    """The id of the experiment."""
    epoch: int
    """The number of the trial's run that wrote the folder."""
    is_complete: bool
    """Whether the folder has a manifest."""
    is_own: bool
    """Whether the manifest names this cluster."""
