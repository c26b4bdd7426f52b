"""Answers of the cluster besides resources: typed dictionaries with the fields of the API.

Times are epoch milliseconds, sizes bytes, steps batches.
"""

from __future__ import annotations

from typing import Any, TypedDict


class Pool(TypedDict):
    """A resource pool's slots and the trials on them or waiting for them."""

    name: str
    slots: int
    free_slots: int
    queued: int
    running: int
    agents: int


class Overview(TypedDict):
    """The cluster as a whole."""

    cluster_id: str
    version: str
    resource_pools: list[Pool]


class PoolChange(TypedDict):
    """The action of a cluster configuration file on a pool: `create`, `change`, `remove` or `keep`.

    `fields` are the fields of the file that change.
    """

    resource_pool: str
    action: str
    fields: list[str]


class AppliedConfiguration(TypedDict):
    """The changes that a cluster configuration file made, or with `dry_run` would make.

    `shared` are the fields that all pools share.
    """

    changes: list[PoolChange]
    shared: list[str]
    dry_run: bool


class Identity(TypedDict):
    """The user of a token, and its role: `user` or `admin`."""

    user: str
    role: str


class RungTrial(TypedDict):
    """A trial in a rung, with its metric there, None where it has none; `outcome` is what came of
    it, such as `promoted`.
    """

    id: int
    number: int
    metric: float | None
    outcome: str


class Rung(TypedDict):
    """A rung at `length`: how many trials have `reached` it, how many of each outcome there are,
    and the best of them.
    """

    number: int
    length: int
    reached: int
    outcomes: dict[str, int]
    best_metric: float | None
    trials: list[RungTrial]


class Bracket(TypedDict):
    """Trials that are compared with each other; the rungs go up."""

    rungs: list[Rung]


class Rungs(TypedDict):
    """The brackets of a search; none where its trials are not compared at rungs. Lengths are in
    `unit`.
    """

    unit: str
    metric: str
    smaller_is_better: bool
    brackets: list[Bracket]


class NoticeCounts(TypedDict):
    """The numbers of notices that a trial's machine ends, by how they went: in a checkpoint begun
    after it, in one begun before it, in neither, or in an end before the trial left.
    """

    saved: int
    finished: int
    kept: int
    cut: int


class TrialCounts(TypedDict):
    """Trials of an experiment: asked for so far, not ended yet, ended well, ended in an error."""

    requested: int
    running: int
    completed: int
    errored: int


class Place(TypedDict):
    """Slots of one agent."""

    agent_id: str
    slots: list[int]


class Allocation(TypedDict):
    """The slots of a trial, on one agent or, as a gang, on several; none while it waits."""

    id: str
    state: str
    places: list[Place]


class Loss(TypedDict):
    """A run that ended without a failure of the trial: when, on which agent, and why."""

    time_ms: int
    agent_id: str
    cause: str


class Damage(TypedDict):
    """A checkpoint that a run began from and found damaged: which one, and why; the trial went on
    from `instead`, None where it had no other of its own.
    """

    time_ms: int
    uuid: str
    steps_completed: int
    cause: str
    instead: str | None
    instead_steps: int


class MetricReport(TypedDict):
    """One report of a trial: what it measured after `steps_completed` batches."""

    group: str
    steps_completed: int
    metrics: dict[str, Any]
    time_ms: int


class MetricSummary(TypedDict):
    """All reports of one number of a trial in short."""

    group: str
    name: str
    count: int
    last_steps: int
    last: float
    minimum: float
    maximum: float
    mean: float


class Series(TypedDict):
    """A curve of one number of a trial: [steps_completed, value], `total` of them before thinning.

    The cluster thins by Largest-Triangle-Three-Buckets (Steinarsson, 2013), which keeps the shape.
    """

    group: str
    name: str
    points: list[tuple[int, float]]
    total: int


class TrialSeries(TypedDict):
    """A curve of one trial among those of its experiment."""

    trial_id: int
    points: list[tuple[int, float]]
    total: int


class ExperimentMetrics(TypedDict):
    """One number of an experiment's best trials, the best first."""

    group: str
    name: str
    series: list[TrialSeries]


class LogLine(TypedDict):
    """A line of a trial's log; `offset` counts bytes; None where it is not known."""

    offset: int
    time_ms: int | None
    rank: int
    level: str | None
    text: str


class HistoryEntry(TypedDict):
    """A step of the experiment or of one of its trials, and why it was taken."""

    time_ms: int
    actor: str
    revision: int
    text: str
    reasons: list[str]


class ReplayedActor(TypedDict):
    """An actor whose journal was folded again; `difference` is None where all came out the same."""

    actor: str
    entries: int
    difference: dict[str, Any] | None


class CheckpointFile(TypedDict):
    """A file of a checkpoint; `url` may be fetched without a token for 15 minutes."""

    path: str
    size: int
    sha256: str
    url: str


class EventFilePart(TypedDict):
    """Bytes of a file for TensorBoard; `url` may be fetched without a token for 15 minutes."""

    size: int
    url: str


class EventFile(TypedDict):
    """A file for TensorBoard: its parts follow each other. While `version` is the same, more parts
    or a larger last one are all that changes.
    """

    path: str
    size: int
    version: str
    parts: list[EventFilePart]


class CheckpointPlace(TypedDict):
    """The place of a checkpoint: `storage` leads to its store, `path` is the folder in it."""

    uuid: str
    path: str
    storage: dict[str, str]


class CheckpointHolders(TypedDict):
    """The holders of a checkpoint: users who pinned it, model versions as `MODEL/NUMBER`, and the
    ids of experiments that started from it.
    """

    users: list[str]
    versions: list[str]
    experiments: list[int]


class CheckpointPin(CheckpointHolders):
    """A checkpoint and its holders."""

    uuid: str


class FileFinding(TypedDict):
    """The result of verifying a file: `state` is OK, DAMAGED, MISSING or, where the store does not
    say whether it is there, DENIED; `problem` says why.
    """

    path: str
    state: str
    problem: str


class CollectionPreview(TypedDict):
    """Checkpoints that a collection would delete and keep; `delete` lists the first 500.

    `delete_files` counts manifests as well, and `delete_seconds` is how long so many take at the
    cluster's limit.
    """

    delete: list[dict[str, Any]]
    delete_count: int
    delete_files: int
    delete_bytes: int
    delete_seconds: int
    keep_count: int
    keep_bytes: int


class DeletionPreview(TypedDict):
    """The effect that the deletion of a checkpoint would have; `problem` says why it would be
    refused, "" if it would not.
    """

    uuid: str
    delete_files: int
    delete_bytes: int
    delete_seconds: int
    problem: str


class CostItem(TypedDict):
    """Dollars that something cost: `cost` for slots in use, `instance_cost` for instances.

    Of the second, `idle_cost` is for what nobody used. None where no instance belongs to it alone.
    """

    name: str
    title: str
    cost: float
    instance_cost: float | None
    idle_cost: float | None


class CostReport(TypedDict):
    """Costs of the days from `since` to `until`."""

    by: str
    since: str
    until: str
    items: list[CostItem]
    total: CostItem


class UnrecordedCheckpoint(TypedDict):
    """A folder among an experiment's checkpoints that the cluster has no record of.

    `epoch` counts the runs of its trial, `is_complete` says that it has a manifest, and `is_own`
    that this names the cluster: only these go when the experiment is deleted.
    """

    uuid: str
    trial_id: int
    experiment_id: int
    epoch: int
    is_complete: bool
    is_own: bool
