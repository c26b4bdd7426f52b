"""The directory through which a trial process and its agent talk (docs/trial-directory.md).

JSON has no NaN and no infinities: in every line we write they are the strings "NaN", "Infinity"
and "-Infinity".
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from detcloud import DetcloudError

ENVIRONMENT_VARIABLE = "DETCLOUD_TRIAL_DIR"
LINE_BYTES_MAX = 256 * 1024

Record = TypeVar("Record", bound="CheckpointReference | TrialSpec | Preempt | Directives")


class Reporter(Protocol):
    """Takes one report: its kind and its fields."""

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
class TrialSpec:
    """in/spec.json; every field has the value of a trial without a cluster by default."""

    version: int = 1
    cluster_id: str = "local"
    experiment_id: int = 0
    trial_id: int = 0
    allocation_id: str = "0.0"
    epoch: int = 0
    trial_seed: int = 0
    hparams: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    entrypoint: str | list[str] = ""
    latest_checkpoint: CheckpointReference | None = None
    # Its keys are not for whoever prints the specification.
    storage: dict[str, Any] | None = field(default=None, repr=False)
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
    checkpoint_policy: str = "best"
    perform_initial_validation: bool = False
    metric: str = "validation_loss"
    smaller_is_better: bool = True
    test_mode: bool = False


ENDLESS = 1 << 53
"""The length of a training that ends when its code does, or when the searcher stops it."""


@dataclass(frozen=True)
class Preempt:
    """A wish to stop: at the next batch with a deadline, at the workload's end without one."""

    deadline_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Directives:
    """in/directives.json; lengths are batches since the trial's start."""

    revision: int = 0
    length: int | None = None
    closed: bool = False
    answered: int = 0
    best_validation: float | None = None
    preempt: Preempt | None = None


class DirectivesFile:
    """Reads directives.json; a look at an unchanged file costs one stat."""

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
                directives = _directives(_document(self._path), str(self._path))
                self._identity = identity
                if directives.revision >= self.latest.revision:
                    self.latest = directives
        except FileNotFoundError:
            pass
        return self.latest


class ReportFile:
    """Appends report lines, each with one write on a descriptor opened O_APPEND. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        self._offset = os.fstat(self._descriptor).st_size

    def append(self, kind: str, **fields: object) -> None:
        """Raises DetcloudError for a value that JSON cannot hold, a line over 256 KiB and a line
        that cannot be written."""
        time_ms = time.time_ns() // 1_000_000
        entry = {"kind": kind, "time_ms": time_ms, **_legal_object(fields, kind)}
        line = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise DetcloudError(
                f"a {kind!r} report of {len(line)} bytes was refused, the limit is "
                f"{LINE_BYTES_MAX}: report fewer or smaller values, keep large ones in a checkpoint"
            )
        try:
            line = self._after_half_a_line() + line
            written = os.write(self._descriptor, line)
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

    def _after_half_a_line(self) -> bytes:
        """What keeps the next line apart from one that a full disk cut, here or in a process of
        the same rank before: the reader skips half a line, but not what is glued to it."""
        size = os.fstat(self._descriptor).st_size
        torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        return b"\n" if torn else b""

    def has_exit(self) -> bool:
        """Whether an `exit` line was appended, by any process, since this object was made."""
        with self.path.open("rb") as report:
            report.seek(self._offset)
            return any(_is_exit(line) for line in report)

    def close(self) -> None:
        """What is appended later fails and never reaches a file that got the same descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


class TrialDirectory:
    """One trial directory, seen from the trial."""

    def __init__(self, path: Path) -> None:
        """Raises DetcloudError where in/spec.json is missing or is not what the contract says."""
        self.path = path
        place = path / "in" / "spec.json"
        try:
            document = _document(place)
        except FileNotFoundError:
            raise DetcloudError(
                f"{place} does not exist: {ENVIRONMENT_VARIABLE} must name a directory with "
                "in/spec.json, or be unset to run without a cluster"
            ) from None
        self.spec = _spec(document, str(place))
        self.directives = DirectivesFile(path / "in" / "directives.json")
        self.report = ReportFile(path / "out" / f"report-{self.spec.rank}.jsonl")

    @classmethod
    def from_environment(cls) -> TrialDirectory | None:
        """The directory DETCLOUD_TRIAL_DIR names; None without a cluster."""
        path = os.environ.get(ENVIRONMENT_VARIABLE)
        return cls(Path(path)) if path else None


def _is_exit(line: bytes) -> bool:
    # Other writers than this one may put spaces where they like.
    if b'"exit"' not in line:
        return False
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    return isinstance(entry, dict) and entry.get("kind") == "exit"


def legal(value: object, place: str) -> Any:
    """`value` as JSON holds it: tensors and arrays become numbers and lists, NaN becomes "NaN".

    In text, what UTF-8 cannot hold (a file's name with other bytes) becomes "?".
    Raises DetcloudError, naming `place`, for anything else.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return _legal_float(value)
    if isinstance(value, str):
        return legal_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, dict):
        return _legal_object(value, place)
    if isinstance(value, list | tuple):
        return [legal(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise DetcloudError(
        f"{place} is a {type(value).__name__}: only numbers, strings, lists, objects and tensors "
        "can be reported"
    )


def legal_text(text: str) -> str:
    """`text` with a "?" for each half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def _legal_float(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _legal_object(value: dict[str, Any], place: str) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise DetcloudError(f"{place} has the key {key!r}: keys must be strings")
    return {legal_text(key): legal(item, f"{place}.{key}") for key, item in value.items()}


def _document(path: Path) -> object:
    try:
        document: object = json.loads(path.read_bytes())
    except ValueError as error:
        raise DetcloudError(f"{path} is not JSON: {error}") from None
    return document


def _spec(document: object, place: str) -> TrialSpec:
    spec = _record(TrialSpec, document, place, latest_checkpoint=CheckpointReference)
    if spec.version != 1:
        raise DetcloudError(f"{place}: version is {spec.version}, this harness reads version 1")
    if spec.checkpoint_policy not in ("best", "all", "none"):
        raise DetcloudError(
            f"{place}: checkpoint_policy is {spec.checkpoint_policy!r}, not best, all or none"
        )
    if spec.era not in ("steps", "length"):
        raise DetcloudError(f"{place}: era is {spec.era!r}, not steps or length")
    return spec


def _directives(document: object, place: str) -> Directives:
    return _record(Directives, document, place, preempt=Preempt)


_NAMES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "float": (int, float),
    "list": (list,),
    "dict": (dict,),
    "None": (type(None),),
}


def _record(
    kind: type[Record],
    document: object,
    place: str,
    **nested: type[CheckpointReference] | type[Preempt],
) -> Record:
    """A frozen record from a JSON object; unknown fields are ignored, so either side may be newer.

    Raises DetcloudError that names the field, its value and what was expected.
    """
    if not isinstance(document, dict):
        raise DetcloudError(f"{place} must be an object, it is {document!r:.80}")
    values: dict[str, Any] = {}
    for one in fields(kind):
        if one.name not in document:
            continue
        value = document[one.name]
        if one.name in nested and value is not None:
            value = _record(nested[one.name], value, f"{place}: {one.name}")
        elif not _fits(value, str(one.type)):
            raise DetcloudError(f"{place}: {one.name} is {value!r:.80}, not {one.type}")
        values[one.name] = value
    try:
        return kind(**values)
    except TypeError as error:
        raise DetcloudError(f"{place} is not complete: {error}") from None


def _fits(value: object, annotation: str) -> bool:
    # bool is an int in Python and no number in JSON, hence `type` and not isinstance.
    parts = (part.split("[")[0].strip() for part in annotation.split(" | "))
    return any(type(value) in _NAMES.get(part, ()) for part in parts)
