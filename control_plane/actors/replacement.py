"""Replacements: the way of a trial from the loss of slots to the first step of a later run.

All times are times of the server. Agents and trials report durations by their own monotonic clocks,
so that a wrong clock of a machine cannot move a phase. The phases of a replacement never overlap,
and their sum is the duration of the replacement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from control_plane.rows import experiment_rows, pool_rows, trial_rows
from control_plane.rows.json_codec import JsonCodec

KEPT_MS: Final = 90 * 24 * 3_600_000
"""The time after which the row of a replacement expires in its pool."""
REASON_CHARACTERS_MAX: Final = 200
"""The characters of a replacement's reason that are kept."""


class Cause(StrEnum):
    """The reason why a run lost the slots."""

    NOTICE = "notice"
    """The machine or the agent announced its end."""
    LOSS = "loss"
    """The machine, the agent or the process vanished without a notice."""
    PREEMPTION = "preemption"
    """The cluster asked for the slots, for example for another job."""


class Phase(StrEnum):
    """A phase of a replacement, in the order of the timeline."""

    CHECKPOINT = "checkpoint"
    """From the notice or the preemption to the exit of the run, which saves a checkpoint."""
    DETECTION = "detection"
    """From the last contact to the time at which the cluster gave the run up."""
    RETRIES = "retries"
    """The runs that ended before their first step, from request to request."""
    QUEUE = "queue"
    """The wait for slots, without the launch and the boot of a machine."""
    LAUNCH = "launch"
    """From the request of a machine to the start of its kernel."""
    BOOT = "boot"
    """From the start of the machine's kernel to the enrolment of its agent."""
    CODE = "code"
    """The download and the unpacking of the model code."""
    IMAGE = "image"
    """The pull of the image."""
    PACKAGES = "packages"
    """The download of packages, their installation and the startup hook."""
    START = "start"
    """The rest before the first step: messages, the start of the process, and imports."""
    RESTORE = "restore"
    """The download and the loading of the checkpoint."""
    FIRST_STEP = "first_step"
    """From the restored checkpoint to the end of the first step."""


RUN_PHASES: Final = (Phase.CODE, Phase.IMAGE, Phase.PACKAGES, Phase.RESTORE, Phase.FIRST_STEP)
"""The phases of a run whose durations agents and trials report."""
MACHINE_AGE: Final = "machine"
"""The reported time since the start of a machine's kernel."""
AGENT_AGE: Final = "agent"
"""The reported time since the enrolment of an agent."""
REPORTED_DURATIONS: Final = frozenset({MACHINE_AGE, AGENT_AGE, *RUN_PHASES})
"""The names of durations in reports."""


@dataclass(frozen=True, slots=True)
class NewMachine:
    """A machine that was launched for a run, with the times of the launch and the boot."""

    launched_ms: int
    """The time at which the launch was requested, in epoch ms."""
    booted_ms: int
    """The time at which the machine's kernel started, in epoch ms."""
    enrolled_ms: int
    """The time at which the machine's agent enrolled, in epoch ms."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A replacement that has not ended. Part of the head of its trial."""

    cause: str
    """The reason why the run lost its slots, one of Cause."""
    reason: str
    """The same as a text for users."""
    epoch: int
    """The epoch of the run that lost its slots."""
    agent: str
    """The agent of that run. "": unknown, or several."""
    begun_ms: int
    """The time of the notice, of the last contact or of the preemption, in epoch ms."""
    released_ms: int = 0
    """The time at which the run released its slots, in epoch ms. 0: the run still has them."""
    requested_ms: int = 0
    """The time of the latest request for slots after a run, in epoch ms."""
    attempts: int = 0
    """The number of later runs that ended before their first step."""
    machine: NewMachine | None = None
    """The machine of the present run whose agent enrolled last, since the request for slots. None:
    no such machine, or not known.
    """
    durations: Mapping[str, int] = field(default_factory=dict)
    """The reported durations of the present run in ms, of the slowest node, by phase."""
    early_pull_failure: str = ""
    """Why a node of the present run could not pull the image before the assignment, or ""."""


@dataclass(frozen=True, slots=True)
class ReplacementRecord:
    """A replacement that has ended: a row of the pool, of the experiment and of the trial."""

    experiment: int
    """The id of the experiment."""
    trial: int
    """The id of the trial."""
    cause: str
    """The reason why the run lost its slots: `notice`, `loss` or `preemption`."""
    reason: str
    """The same as a text for users."""
    from_epoch: int
    """The epoch of the run that lost its slots."""
    epoch: int
    """The epoch of the run that trains again."""
    from_agent: str
    """The agent of the run that lost its slots. "": unknown, or several."""
    agents: tuple[str, ...]
    """The agents of the run that trains again, in the order of ranks."""
    begun_ms: int
    """The time of the notice, of the last contact or of the preemption, in epoch ms."""
    ended_ms: int
    """The time at which the first step was reported, in epoch ms."""
    attempts: int
    """The number of runs in between that ended before their first step."""
    phases: Mapping[str, int]
    """The duration of each known phase in ms. The sum is `ended_ms` - `begun_ms`."""
    has_first_step: bool = True
    """Whether the run reported its first step. If not, the replacement ended with another report of
    training, and its duration may be too long.
    """
    early_pull_failure: str = ""
    """Why a node could not pull the image before the assignment. "": no such failure."""


_CODEC = JsonCodec(pool_rows.REPLACEMENT, ReplacementRecord, {"agents": tuple}, ensure_ascii=False)
assert pool_rows.REPLACEMENT.record == trial_rows.TRIAL_REPLACEMENT.record
assert pool_rows.REPLACEMENT.record == experiment_rows.EXPERIMENT_REPLACEMENT.record


def encode_replacement(record: ReplacementRecord) -> bytes:
    """Encode an ended replacement as the body of a row."""
    return _CODEC.encode(record)


def decode_replacement(body: bytes) -> ReplacementRecord:
    """Decode the body of a row. Fields of newer versions are ignored.

    Raises ValueError for a body that is not JSON, and TypeError for a missing field.
    """
    return _CODEC.decode(body)


def replacements_partition(pool: str) -> str:
    """Return the partition of a pool's ended replacements."""
    return pool_rows.REPLACEMENT.partition_of(pool)


def pool_sort_key(record: ReplacementRecord) -> str:
    """Return the sort key of a replacement in the pool. Rows sort by the end of the replacement."""
    return f"{record.ended_ms:015d}.{record.trial}.{record.epoch}"


def experiment_sort_key(record: ReplacementRecord) -> str:
    """Return the sort key of a replacement in the experiment. Rows sort by the end."""
    return experiment_rows.EXPERIMENT_REPLACEMENT.sort + pool_sort_key(record)


def trial_sort_key(record: ReplacementRecord) -> str:
    """Return the sort key of a replacement in the trial. Rows sort by the epoch of the run."""
    return f"{trial_rows.TRIAL_REPLACEMENT.sort}{record.epoch:08d}"


def phase_durations(replacement: Replacement, assigned_ms: int, until_ms: int) -> dict[str, int]:
    """Return the duration of each known phase in ms, in the order of the timeline.

    No duration is negative, and the sum is `until_ms` - `begun_ms`, or 0 if `until_ms` is earlier.
    A time outside its turn counts as the nearest possible time, and a reported duration is cut to
    the time that is left.

    Args:
        replacement: the replacement.
        assigned_ms: the time at which the present run got its slots, in epoch ms. 0: it waits.
        until_ms: the end of the replacement, or the present time, in epoch ms.
    """
    timeline = _Timeline(replacement.begun_ms, until_ms)
    released_ms = replacement.released_ms or until_ms
    is_loss = replacement.cause == Cause.LOSS
    if released_ms > replacement.begun_ms:
        timeline.advance(Phase.DETECTION if is_loss else Phase.CHECKPOINT, released_ms)
    if replacement.released_ms:
        if replacement.attempts:
            timeline.advance(Phase.RETRIES, replacement.requested_ms)
        _add_wait(timeline, replacement, assigned_ms or until_ms)
        if assigned_ms:
            _add_run(timeline, replacement.durations, until_ms)
    return {phase.value: timeline.phases[phase] for phase in Phase if phase in timeline.phases}


class _Timeline:
    """The phases up to a time that only moves forward, and never beyond the end."""

    def __init__(self, begun_ms: int, until_ms: int) -> None:
        self.phases: dict[Phase, int] = {}
        self._until_ms = until_ms
        self.now_ms = begun_ms

    def advance(self, phase: Phase, end_ms: int, limit_ms: int | None = None) -> None:
        """Add the time up to `end_ms`, but at most up to `limit_ms` and the end, to a phase."""
        limit_ms = self._until_ms if limit_ms is None else min(limit_ms, self._until_ms)
        after_ms = max(self.now_ms, min(end_ms, limit_ms))
        self.phases[phase] = self.phases.get(phase, 0) + after_ms - self.now_ms
        self.now_ms = after_ms


def _add_wait(timeline: _Timeline, replacement: Replacement, assigned_ms: int) -> None:
    """Add the wait for slots: the queue, and the launch and boot of a new machine.

    A machine whose agent enrolled before the wait is not new, and a wait without a new machine is
    all queue.
    """
    machine = replacement.machine
    if machine is not None and machine.enrolled_ms > timeline.now_ms:
        timeline.advance(Phase.QUEUE, machine.launched_ms, assigned_ms)
        timeline.advance(Phase.LAUNCH, machine.booted_ms, assigned_ms)
        timeline.advance(Phase.BOOT, machine.enrolled_ms, assigned_ms)
    timeline.advance(Phase.QUEUE, assigned_ms)


def _add_run(timeline: _Timeline, durations: Mapping[str, int], until_ms: int) -> None:
    """Add the phases of the run up to `until_ms`. The rest of the time is `start`."""
    left_ms = max(0, until_ms - timeline.now_ms)
    for phase in RUN_PHASES:
        if phase in durations:
            timeline.phases[phase] = min(left_ms, max(0, durations[phase]))
            left_ms -= timeline.phases[phase]
    timeline.phases[Phase.START] = left_ms
