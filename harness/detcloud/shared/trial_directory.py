"""The directory by which a trial and its agent communicate (docs/trial-directory.md)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from detcloud.shared.errors import DetcloudError
from detcloud.shared.json_records import parse_record, read_document
from detcloud.shared.processes import read_process
from detcloud.shared.report_file import ReportFile

TRIAL_DIRECTORY_VARIABLE = "DETCLOUD_TRIAL_DIR"
TEMPORARY_FOLDER_VARIABLE = "DETCLOUD_TMPDIR"
"""The variable with a folder that is deleted with the allocation, unlike maybe TMPDIR."""
# In version 2, lengths and periods may be in epochs.
VERSIONS = (1, 2, 3)


class Reporter(Protocol):
    """A function that writes a report with a kind and fields."""

    def __call__(self, kind: str, **fields: object) -> None: ...


@dataclass(frozen=True)
class CheckpointReference:
    """A reference to a complete checkpoint."""

    uuid: str
    """The UUID."""
    trial_id: int
    """The trial that wrote the checkpoint."""
    path: str
    """EXPERIMENT/TRIAL/EPOCH/UUID within the checkpoint store."""
    steps_completed: int = 0
    """The number of batches that were completed before the checkpoint."""
    manifest_sha256: str | None = None
    """The digest of the checkpoint's manifest. None if unknown."""


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A damaged checkpoint of the trial, which starts from an older checkpoint or from scratch."""

    uuid: str
    steps_completed: int = 0
    cause: str = ""


@dataclass(frozen=True)
class TrialSpec:
    """The contents of in/spec.json. docs/trial-directory.md describes the fields.

    The defaults apply to a trial without a cluster.
    """

    version: int = 1
    cluster_id: str = "local"
    agent_id: str = ""
    experiment_id: int = 0
    """The id of the experiment; 0 without a cluster."""
    trial_id: int = 0
    """The id of the trial; 0 without a cluster."""
    allocation_id: str = "0.0"
    epoch: int = 0
    trial_seed: int = 0
    """The seed for the trial's random numbers."""
    hparams: dict[str, Any] = field(default_factory=dict)
    """The hyperparameters."""
    config: dict[str, Any] = field(default_factory=dict)
    """The experiment's configuration with all defaults."""
    entrypoint: str | list[str] = ""
    latest_checkpoint: CheckpointReference | None = None
    """The checkpoint to load at the start, or None. If its `trial_id` is another trial's (a warm
    start), load the weights and count steps from 0.
    """
    damaged_checkpoint: DamagedCheckpoint | None = None
    # The section may contain secret keys, so the representation of the spec omits it.
    storage: dict[str, Any] | None = field(default=None, repr=False)
    data_layer: dict[str, Any] | None = field(default=None, repr=False)
    steps_completed: int = 0
    """The number of batches that earlier runs of the trial completed."""
    validated_steps: int | None = None
    # Earlier runs' reports from this batch on do not count. None if no work was lost.
    discarded_from: int | None = None
    slots: list[int] = field(default_factory=list)
    """The numbers of the trial's slots on this machine."""
    threads: int | None = None
    rank: int = 0
    size: int = 1
    node_rank: int = 0
    nodes: int = 1
    hosts: list[str] = field(default_factory=list)
    rendezvous_port: int | None = None
    era: str = "length"
    scheduling_unit: int = 100
    min_validation_batches: int = 0
    min_checkpoint_batches: int = 0
    # The periods in epochs, if the cluster does not know the number of batches in an epoch.
    min_validation_epochs: int = 0
    min_checkpoint_epochs: int = 0
    checkpoint_policy: str = "best"
    perform_initial_validation: bool = False
    metric: str = "validation_loss"
    """The name of the searcher's metric."""
    smaller_is_better: bool = True
    """Whether small values of the metric are best."""
    test_mode: bool = False
    """Whether the trial only tests the code, with one batch, validation and checkpoint."""
    metadata: dict[str, Any] = field(default_factory=dict)
    # Whether the cluster wants a report of the run's first step.
    replaces_run: bool = False
    # The settings of the snapshots of a notebook's or shell's folder. None: no snapshots.
    snapshots: dict[str, Any] | None = None
    # The settings of the check of the machines before the training. None: no check.
    gang_check: dict[str, Any] | None = None

    @property
    def is_debugged(self) -> bool:
        """Whether rank 0 waits for a debugger."""
        return bool((self.config.get("debugger") or {}).get("enabled"))


DATA_LAYER_PATH = "DETCLOUD_DATA_LAYER_PATH"
"""The variable with the folder of cached data sets in the trial's file system."""
BATCHES, EPOCHS = "batches", "epochs"
ENDLESS = 1 << 53
"""The length of a training that only the training code or the searcher ends."""


@dataclass(frozen=True)
class Preemption:
    """A request to stop."""

    deadline_ms: int | None = None
    """The deadline in epoch milliseconds: stop at the next batch.

    None means a stop at the end of the workload.
    """
    reason: str = ""


@dataclass(frozen=True)
class Directives:
    """The contents of in/directives.json. docs/trial-directory.md describes all fields."""

    revision: int = 0
    length: int | None = None
    """The length to train to, since the trial's start, in `length_unit`."""
    closed: bool = False
    answered: int = 0
    best_validation: float | None = None
    preempt: Preemption | None = None
    """The request to stop, or None."""
    length_units: int | None = None
    """`length` in the configuration's unit. None if the cluster does not send it."""
    length_unit: str = BATCHES
    """BATCHES, or EPOCHS if only the trial knows the number of batches in an epoch."""
    stop: Preemption | None = None
    """The stop of this run, or None. A notice of the machine's end is no stop."""


class DirectivesFile:
    """A reader of the directives in the file `path`. `latest` are the last read directives.

    Reading an unchanged file costs a single stat call.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int, int] | None = None
        self.latest = Directives()

    def read(self) -> Directives:
        """Return the newest directives, and store them in `latest`. Ignore an older revision.

        Return the defaults before the file exists, and the last directives if the file is deleted.
        An equal revision with other content counts as newer. Raise DetcloudError if the file is
        malformed, and OSError if it is unreadable; `latest` then stays, and each call raises the
        error until the file changes.
        """
        try:
            status = self._path.stat()
            identity = (status.st_mtime_ns, status.st_ino, status.st_size)
            if identity != self._identity:
                directives = _parse_directives(read_document(self._path), str(self._path))
                self._identity = identity
                if directives.revision >= self.latest.revision:
                    self.latest = directives
        except FileNotFoundError:
            pass
        return self.latest


class TrialDirectory:
    """The trial's view of its trial directory.

    `rank` is the rank of this process. `is_worker`: whether a launcher's chief reports instead of
    this process.
    """

    def __init__(self, path: Path) -> None:
        """Read in/spec.json. Raise DetcloudError if the file is missing or malformed.

        An unknown version is malformed, unknown fields are ignored, and missing fields get the
        defaults of TrialSpec. Raise OSError if the file exists and is unreadable. Nothing is
        created or written.
        """
        self.path = path
        place = path / "in" / "spec.json"
        try:
            document = read_document(place)
        except FileNotFoundError:
            raise DetcloudError(
                f"{place} does not exist: {TRIAL_DIRECTORY_VARIABLE} must name a directory with "
                "in/spec.json, or be unset to run without a cluster"
            ) from None
        self.spec = _parse_spec(document, str(place))
        self.directives = DirectivesFile(path / "in" / "directives.json")
        self.rank = self.spec.rank
        self.is_worker = False
        self._report: ReportFile | None = None
        self._node_report: ReportFile | None = None
        self._claim: int | None = None

    @property
    def report(self) -> ReportFile:
        """The report file of this process's rank, created at the first use, and then kept.

        The folder `out` is created as well. Raise OSError if the file cannot be created or is a
        link.
        """
        if self._report is None:
            self._report = ReportFile(self._path_of(self.rank))
        return self._report

    def open_node_report(self) -> ReportFile:
        """Return the report file of the node's first process, which starts the workers.

        Create the file if needed. Return `report` if `set_rank` has not changed the rank. Later
        calls return the same object. Raise OSError if the file cannot be created.
        """
        if self.rank == self.spec.rank:
            return self.report
        self._node_report = self._node_report or ReportFile(self._path_of(self.spec.rank))
        return self._node_report

    @property
    def has_report(self) -> bool:
        """Whether a process of this rank, maybe an earlier process, has created the report file."""
        return self._path_of(self.rank).exists()

    def _path_of(self, rank: int) -> Path:
        return self.path / "out" / f"report-{rank}.jsonl"

    def set_rank(self, rank: int) -> None:
        """Set this process's rank among a launcher's workers. All except rank 0 are workers.

        `report` stays the file of the earlier rank if the file is open already, and a claimed rank
        stays claimed.
        """
        self.rank, self.is_worker = rank, rank > 0

    def claim_rank(self) -> None:
        """Claim the rank for this process until `close`, with a lock on a file in out/.

        The file and the folder are created if missing, and stay. Raise DetcloudError if another
        process has claimed the rank, since both would report as the same rank; then nothing is
        claimed. Further claims of this process succeed. On a file system without locks, every claim
        succeeds. Raise OSError if the file cannot be created.
        """
        (self.path / "out").mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._claim = os.open(self.path / "out" / f".rank-{self.rank}", flags, 0o644)
        try:
            # This kind of lock belongs to the process, so forked children do not hold it.
            fcntl.lockf(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # `close` must not clear the other process's claim.
            os.close(self._claim)
            self._claim = None
            raise DetcloudError(
                f"two processes of this trial claim to be rank {self.rank} of "
                f"{self.spec.size}, and both would report it: start them with `python3 -m "
                "detcloud.launch.torch_distributed`, which gives each a rank, or give core.init "
                "`distributed=core.DistributedContext(rank=..., size=..., chief_ip=...)`"
            ) from None
        except OSError:
            # The file system does not support locks.
            return

    def note_listener(self) -> None:
        """Record in the rank's claim, until `close`, that this process reads its directives.

        The record consists of the process id and start time, in the claim's file. A stop then sends
        SIGTERM to the process only late, after time to save. Do nothing without a claim or without
        /proc. Errors of the file are ignored.
        """
        own = read_process(os.getpid())
        if self._claim is not None and own is not None:
            self._write_claim(f"{own.pid} {own.started_ticks}")

    def _write_claim(self, text: str) -> None:
        """Replace the text in the file by which this process claims its rank.

        Do nothing without a claim. An OSError is ignored; a stop then sends signals sooner.
        """
        if self._claim is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._claim, 0)
                os.pwrite(self._claim, text.encode(), 0)

    def close(self) -> None:
        """Close the report files, clear and release the claim of the rank. Files stay.

        A second call raises OSError if a report file was open.
        """
        for report in filter(None, (self._report, self._node_report)):
            report.close()
        if self._claim is not None:
            self._write_claim("")
            os.close(self._claim)
            self._claim = None

    @classmethod
    def from_environment(cls) -> TrialDirectory | None:
        """Open the directory that DETCLOUD_TRIAL_DIR names. Return None without a value.

        An empty value counts as none. Each call reads in/spec.json and returns a new object. Raise
        DetcloudError if the file is missing or malformed, and OSError if it is unreadable.
        """
        path = os.environ.get(TRIAL_DIRECTORY_VARIABLE)
        return cls(Path(path)) if path else None


def _parse_spec(document: object, place: str) -> TrialSpec:
    spec = parse_record(
        TrialSpec,
        document,
        place,
        latest_checkpoint=CheckpointReference,
        damaged_checkpoint=DamagedCheckpoint,
    )
    if spec.version not in VERSIONS:
        *earlier, last = map(str, VERSIONS)
        known = f"{', '.join(earlier)} and {last}"
        raise DetcloudError(
            f"{place}: version is {spec.version}, this harness reads versions {known}"
        )
    if spec.checkpoint_policy not in ("best", "all", "none"):
        raise DetcloudError(
            f"{place}: checkpoint_policy is {spec.checkpoint_policy!r}, not best, all or none"
        )
    if spec.era not in ("steps", "length"):
        raise DetcloudError(f"{place}: era is {spec.era!r}, not steps or length")
    return spec


def _parse_directives(document: object, place: str) -> Directives:
    directives = parse_record(Directives, document, place, preempt=Preemption, stop=Preemption)
    if directives.length_unit not in (BATCHES, EPOCHS):
        raise DetcloudError(
            f"{place}: length_unit is {directives.length_unit!r}, not {BATCHES} or {EPOCHS}"
        )
    return directives
