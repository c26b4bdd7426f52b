"""The directory through which a trial process and its agent talk (docs/trial-directory.md).

JSON has no NaN and no infinities: in every line we write they are the strings "NaN", "Infinity"
and "-Infinity".
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from detcloud.shared.errors import DetcloudError
from detcloud.shared.json_depth import JSON_DEPTH_MAX

TRIAL_DIRECTORY_VARIABLE = "DETCLOUD_TRIAL_DIR"
TEMPORARY_FOLDER_VARIABLE = "DETCLOUD_TMPDIR"
"""The variable that names a folder which goes with the allocation, as TMPDIR may not."""
LINE_BYTES_MAX = 256 * 1024
# Those of version 2 have lengths in epochs.
VERSIONS = (1, 2)
_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

Record = TypeVar(
    "Record", bound="CheckpointReference | DamagedCheckpoint | TrialSpec | Preemption | Directives"
)


class Reporter(Protocol):
    """A function that takes one report: its kind and its fields."""

    def __call__(self, kind: str, **fields: object) -> None: ...


@dataclass(frozen=True)
class CheckpointReference:
    """A complete checkpoint: `path` is EXPERIMENT/TRIAL/EPOCH/UUID within the store."""

    uuid: str
    trial_id: int
    path: str
    steps_completed: int = 0
    manifest_sha256: str | None = None


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A damaged checkpoint of the trial: it begins from an older one, or from nothing, instead."""

    uuid: str
    steps_completed: int = 0
    cause: str = ""


@dataclass(frozen=True)
class TrialSpec:
    """The contents of in/spec.json; the defaults apply to a trial without a cluster."""

    version: int = 1
    cluster_id: str = "local"
    agent_id: str = ""
    experiment_id: int = 0
    trial_id: int = 0
    allocation_id: str = "0.0"
    epoch: int = 0
    trial_seed: int = 0
    hparams: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    entrypoint: str | list[str] = ""
    latest_checkpoint: CheckpointReference | None = None
    damaged_checkpoint: DamagedCheckpoint | None = None
    # It may hold secret keys, so it is not printed with the specification.
    storage: dict[str, Any] | None = field(default=None, repr=False)
    data_layer: dict[str, Any] | None = field(default=None, repr=False)
    steps_completed: int = 0
    validated_steps: int | None = None
    slots: list[int] = field(default_factory=list)
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
    # Periods in epochs, where the cluster does not know how many batches one has.
    min_validation_epochs: int = 0
    min_checkpoint_epochs: int = 0
    checkpoint_policy: str = "best"
    perform_initial_validation: bool = False
    metric: str = "validation_loss"
    smaller_is_better: bool = True
    test_mode: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


DATA_LAYER_PATH = "DETCLOUD_DATA_LAYER_PATH"
"""The variable by which an agent tells where in the trial's file system cached data sets lie."""
BATCHES, EPOCHS = "batches", "epochs"
ENDLESS = 1 << 53
"""The length of a training that ends when its code does, or when the searcher stops it."""


@dataclass(frozen=True)
class Preemption:
    """A request to stop: at the next batch with a deadline, at the workload's end without one."""

    deadline_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Directives:
    """The contents of in/directives.json; lengths are batches since the trial's start, or epochs
    where `length_unit` says so, since the trial alone knows how many batches one has.

    `length_units` is `length` in the unit of the configuration, where the cluster gives it.
    """

    revision: int = 0
    length: int | None = None
    closed: bool = False
    answered: int = 0
    best_validation: float | None = None
    preempt: Preemption | None = None
    length_units: int | None = None
    length_unit: str = BATCHES


class DirectivesFile:
    """A reader of directives.json; to read an unchanged file costs one stat."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int, int] | None = None
        self.latest = Directives()

    def read(self) -> Directives:
        """The newest directives; the defaults while there is no file. An older revision is ignored.

        Raises DetcloudError where the file is not what the contract says.
        """
        try:
            status = self._path.stat()
            identity = (status.st_mtime_ns, status.st_ino, status.st_size)
            if identity != self._identity:
                directives = _parse_directives(_read_document(self._path), str(self._path))
                self._identity = identity
                if directives.revision >= self.latest.revision:
                    self.latest = directives
        except FileNotFoundError:
            pass
        return self.latest


class ReportFile:
    """A report file; each line is one write on a descriptor opened O_APPEND. Thread-safe.

    A report is to take no more than 50 us (docs/benchmarks.md, `gangs`), so what can be known
    before is not asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        self._offset = os.fstat(self._descriptor).st_size
        # Whether the file may end with half a line, which a whole one of ours rules out.
        self._may_be_torn = True

    def append(self, kind: str, **fields: object) -> None:
        """Append one report with the present time.

        Raises DetcloudError for a value that JSON cannot hold or that is nested too deep, a line
        over 256 KiB and a line that cannot be written.
        """
        time_ms = time.time_ns() // 1_000_000
        entry = {"kind": kind, "time_ms": time_ms, **_to_json_object(fields, kind)}
        line = _encode_json(entry).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise DetcloudError(
                f"a {kind!r} report of {len(line)} bytes was refused, the limit is "
                f"{LINE_BYTES_MAX}: report fewer or smaller values, keep large ones in a checkpoint"
            )
        try:
            if self._may_be_torn:
                line = self._separator_after_torn_line() + line
            self._may_be_torn = True
            written = os.write(self._descriptor, line)
            self._may_be_torn = written != len(line)
        except OSError as error:
            raise DetcloudError(
                f"a {kind!r} report could not be written to {self.path}: {error.strerror}; free "
                "space there, then the trial can go on from its latest checkpoint"
            ) from error
        if written != len(line):
            raise DetcloudError(
                f"{written} of the {len(line)} bytes of a {kind!r} report were written to "
                f"{self.path}: is the disk full?"
            )

    def _separator_after_torn_line(self) -> bytes:
        """A newline if a full disk cut the last line, here or in an earlier process of this rank.

        The reader skips half a line, but not what is glued to it.
        """
        size = os.fstat(self._descriptor).st_size
        torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        return b"\n" if torn else b""

    def has_exit(self) -> bool:
        """Whether an `exit` line was appended, by any process, since this object was made."""
        with self.path.open("rb") as report:
            report.seek(self._offset)
            return any(_is_exit(line) for line in report)

    def close(self) -> None:
        """Close the file; a later append fails and reaches no file with the same descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


class TrialDirectory:
    """A trial directory as its trial uses it."""

    def __init__(self, path: Path) -> None:
        """Raises DetcloudError where in/spec.json is missing or is not what the contract says."""
        self.path = path
        place = path / "in" / "spec.json"
        try:
            document = _read_document(place)
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
        """The report file of this process's rank, made at its first use."""
        if self._report is None:
            self._report = ReportFile(self._path_of(self.rank))
        return self._report

    def open_node_report(self) -> ReportFile:
        """The report file of this node's own process, which stands above its workers."""
        if self.rank == self.spec.rank:
            return self.report
        self._node_report = self._node_report or ReportFile(self._path_of(self.spec.rank))
        return self._node_report

    @property
    def has_report(self) -> bool:
        """Whether a process of this rank has made its report file."""
        return self._path_of(self.rank).exists()

    def _path_of(self, rank: int) -> Path:
        return self.path / "out" / f"report-{rank}.jsonl"

    def set_rank(self, rank: int) -> None:
        """Set the rank among the workers of a launcher; of those the chief alone reports."""
        self.rank, self.is_worker = rank, rank > 0

    def claim_rank(self) -> None:
        """Claim the rank for this process, until `close`.

        Raises DetcloudError where another process has it: both would report the same trial.
        """
        (self.path / "out").mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._claim = os.open(self.path / "out" / f".rank-{self.rank}", flags, 0o644)
        try:
            # Of a process, not of an open file: what it forks does not hold it.
            fcntl.lockf(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise DetcloudError(
                f"two processes of this trial claim to be rank {self.rank} of "
                f"{self.spec.size}, and both would report it: start them with `python3 -m "
                "detcloud.launch.torch_distributed`, which gives each a rank, or give core.init "
                "`distributed=core.DistributedContext(rank=..., size=..., chief_ip=...)`"
            ) from None
        except OSError:
            # A file system without locks.
            return

    def close(self) -> None:
        """Close the report files and give the rank back."""
        for report in filter(None, (self._report, self._node_report)):
            report.close()
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    @classmethod
    def from_environment(cls) -> TrialDirectory | None:
        """The directory DETCLOUD_TRIAL_DIR names; None without a cluster."""
        path = os.environ.get(TRIAL_DIRECTORY_VARIABLE)
        return cls(Path(path)) if path else None


def _is_exit(line: bytes) -> bool:
    # Other writers than this one may put spaces where they like.
    if b'"exit"' not in line:
        return False
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and entry.get("kind") == "exit"


def to_json_value(value: object, place: str, depth: int = 2) -> Any:
    """The value as JSON holds it: tensors and arrays become numbers and lists, NaN becomes "NaN".

    In text, what UTF-8 cannot hold (a file's name with other bytes) becomes "?". `depth` is that of
    the value in a line, which itself has 1.
    Raises DetcloudError, naming `place`, for anything else.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return _to_json_float(value)
    if isinstance(value, str):
        return to_json_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if depth > JSON_DEPTH_MAX and isinstance(value, dict | list | tuple):
        raise DetcloudError(
            f"{place:.80} is nested more than {JSON_DEPTH_MAX} levels deep in the report: report "
            "it flat, or keep it in a checkpoint's files"
        )
    if isinstance(value, dict):
        return _to_json_object(value, place, depth)
    if isinstance(value, list | tuple):
        return [
            to_json_value(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)
        ]
    raise DetcloudError(
        f"{place} is a {type(value).__name__}: only numbers, strings, lists, objects and tensors "
        "can be reported"
    )


def to_json_text(text: str) -> str:
    """The text with a "?" for each half of a surrogate pair."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def _to_json_float(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _to_json_object(value: dict[str, Any], place: str, depth: int = 1) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise DetcloudError(f"{place} has the key {key!r}: keys must be strings")
    return {
        to_json_text(key): to_json_value(item, f"{place}.{key}", depth + 1)
        for key, item in value.items()
    }


def _read_document(path: Path) -> object:
    try:
        document: object = json.loads(path.read_bytes())
    except ValueError as error:
        raise DetcloudError(f"{path} is not JSON: {error}") from None
    return document


def _parse_spec(document: object, place: str) -> TrialSpec:
    spec = _parse_record(
        TrialSpec,
        document,
        place,
        latest_checkpoint=CheckpointReference,
        damaged_checkpoint=DamagedCheckpoint,
    )
    if spec.version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
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
    directives = _parse_record(Directives, document, place, preempt=Preemption)
    if directives.length_unit not in (BATCHES, EPOCHS):
        raise DetcloudError(
            f"{place}: length_unit is {directives.length_unit!r}, not {BATCHES} or {EPOCHS}"
        )
    return directives


_TYPES_BY_NAME: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "list": (list,),
    "dict": (dict,),
    "None": (type(None),),
}


def _parse_record(
    kind: type[Record],
    document: object,
    place: str,
    **nested: type[CheckpointReference] | type[DamagedCheckpoint] | type[Preemption],
) -> Record:
    """A frozen record from a JSON object; unknown fields are ignored, so either side may be newer.

    Raises DetcloudError that names the field, its value and what was expected.
    """
    if not isinstance(document, dict):
        raise DetcloudError(f"{place} must be an object, it is {document!r:.80}")
    values: dict[str, Any] = {}
    for field_ in fields(kind):
        name = field_.name
        if name not in document:
            continue
        value = document[name]
        if name in nested and value is not None:
            value = _parse_record(nested[name], value, f"{place}: {name}")
        elif not _matches_annotation(value, str(field_.type)):
            raise DetcloudError(f"{place}: {name} is {value!r:.80}, not {field_.type}")
        values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise DetcloudError(f"{place} is not complete: {error}") from None


def _matches_annotation(value: object, annotation: str) -> bool:
    # bool is an int in Python and no number in JSON, hence `type` and not isinstance.
    parts = (part.split("[")[0].strip() for part in annotation.split(" | "))
    return any(type(value) in _TYPES_BY_NAME.get(part, ()) for part in parts)
