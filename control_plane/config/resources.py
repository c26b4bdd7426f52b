"""The section `resources`, and bind mounts: slots, queueing, mounts and devices of trials."""

from __future__ import annotations

import posixpath
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from control_plane.config.deadline import EXPECTED as EXPECTED_DEADLINE
from control_plane.config.deadline import deadline_ms
from control_plane.config.durations import PositiveDuration
from control_plane.config.eras import scope_of
from control_plane.config.section import AbsolutePath, Section, refuse, refuse_at
from control_plane.config.sizes import SizeBytes
from control_plane.config.slot_shares import SlotsPerTrial, whole_slots
from control_plane.field_types import CountOrZero, Text
from control_plane.findings import value_text
from control_plane.scheduling.agent_needs import SLOT_TYPES, device_words


def _parse_device(value: object) -> object:
    """Convert a device in the form HOST_PATH:CONTAINER_PATH[:MODE] to a map.

    Return values that are not texts unchanged. Raise PydanticCustomError for a text with fewer than
    two or more than three parts.
    """
    if not isinstance(value, str):
        return value
    parts = value.split(":")
    if not 2 <= len(parts) <= 3:
        refuse(f"must be a map or HOST_PATH:CONTAINER_PATH[:MODE], not {value_text(value)}")
    return dict(zip(("host_path", "container_path", "mode"), parts, strict=False))


def _check_deadline(text: object) -> str:
    if not isinstance(text, str):
        refuse(f"must be {EXPECTED_DEADLINE}, not {value_text(text)}")
    try:
        deadline_ms(text, 0)
    except ValueError as error:
        refuse(f"{error}, not {value_text(text)}")
    return text


# A job waits in each pool of the list in sequence, so a longer list is probably a mistake.
POOLS_MAX: Final = 16


def _parse_pool_names(value: object) -> str | tuple[str, ...]:
    """Return the name of a pool, or a list of names as a tuple. A list of one becomes its name.

    Raise PydanticCustomError for other types and for lists without 1 to POOLS_MAX names. Raise
    ValidationError for an entry that is not a name, is empty or occurs twice.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple):
        refuse(f"must be the name of a pool or a list of names, not {value_text(value)}")
    if not 1 <= len(value) <= POOLS_MAX:
        text = f"must have 1 to {POOLS_MAX} names, not {len(value)}"
        refuse(text, "leave it out for the cluster's default pool")
    for number, name in enumerate(value):
        if not isinstance(name, str) or not name:
            text = f"must be the name of a pool, not {value_text(name)}"
            refuse_at((number,), text, "leave no name of the list empty", name)
        if name in value[:number]:
            refuse_at((number,), f"names pool {value_text(name)} twice", "name it once", name)
    return value[0] if len(value) == 1 else tuple(value)


PoolNames = Annotated[
    str | tuple[str, ...],
    PlainValidator(_parse_pool_names),
    PlainSerializer(lambda value: value if isinstance(value, str) else list(value)),
]
Deadline = Annotated[str, BeforeValidator(_check_deadline)]
Cost = Annotated[float, Field(gt=0)]


def _check_mode(mode: str) -> str:
    if not 1 <= len(mode) <= 3 or set(mode) - set("rwm"):
        refuse(f"must be one to three of the letters r, w and m, not {value_text(mode)}")
    return mode


def _check_slot_type(text: str) -> str:
    """Return the text without surrounding space. Raise PydanticCustomError for a text without
    letters and digits, unless it is empty.
    """
    text = text.strip()
    if text and not device_words(text):
        known = ", ".join(SLOT_TYPES)
        refuse(f"must be {known} or the name of a device, not {value_text(text)}")
    if len(text) > SLOT_TYPE_LENGTH_MAX:
        refuse(f"must have at most {SLOT_TYPE_LENGTH_MAX} characters, not {len(text)}")
    return text


SLOT_TYPE_LENGTH_MAX: Final = 80
SlotType = Annotated[str, AfterValidator(_check_slot_type)]
DeviceMode = Annotated[str, AfterValidator(_check_mode)]


class Device(Section):
    """A device of the host that containers may use."""

    host_path: AbsolutePath
    """The path of the device on the host."""
    container_path: AbsolutePath
    """The path of the device in the container."""
    mode: DeviceMode = "mrw"
    """The permissions of the container: `r` (read), `w` (write) and `m` (mknod)."""


DeviceField = Annotated[Device, BeforeValidator(_parse_device)]


class Resources(Section):
    """The resources that the trials of an experiment may use."""

    slots_per_trial: SlotsPerTrial = 1
    """The number of slots (devices) of each trial; 0 is allowed in the length era only. With a
    share below 1, such as `0.25`, trials of the experiment share a slot: at most four on a slot,
    each with a quarter of the device's memory.
    """
    max_slots: CountOrZero | None = None
    """The largest number of slots that all trials of the experiment hold together. Changed later
    with `experiment set max-slots`.
    """
    weight: Annotated[float, Field(gt=0)] = 1.0
    """The experiment's weight in a pool with the fair-share scheduler. Changed later with
    `experiment set weight`.
    """
    priority: Annotated[int, Field(ge=1, le=99)] | None = None
    """The experiment's priority in a pool with the priority scheduler; 1 is the most important. If
    absent, the default of the pool. Changed later with `experiment set priority`.
    """
    resource_pool: PoolNames = ""
    """The pool of the experiment, or a list of pools in the order of preference. If empty, the
    cluster's default pool for trials with slots or for trials without slots.

    With a list, the job waits in the first pool and moves to the next after `pool_patience`. `job
    update --resource-pool` changes the pool; then the job stays in the new pool.
    """
    pool_patience: PositiveDuration = 600_000
    """How long the job waits in each of several pools before moving to the next. Has no effect with
    a single pool.

    In the first round, the job immediately leaves a pool that cannot provide slots, for example a
    draining pool. In later rounds, the waits double.
    """
    deadline: Deadline | None = None
    """The time by which the experiment must be complete: a duration from the submission (`6h`,
    `90m` or `2d`), or a time with a zone (`2027-01-31T18:00:00+01:00`). Trials run on spot machines
    as far as the deadline allows.
    """
    max_cost: Cost | None = None
    """The most that the experiment may cost in dollars, at the prices that the cluster has recorded
    for the pool's instances. The experiment is paused before it costs more. Changed later with
    `experiment set max-cost`.
    """
    shm_size: SizeBytes = None
    """The size of /dev/shm in the container: bytes, or a size like `1.5 gb`. Only in containers."""
    agent_label: str = ""
    """The label of the agents that may run trials. If empty, only agents without a label run
    trials.
    """
    slot_type: SlotType = ""
    """The devices that trials need: `cuda`, `rocm`, `mps` or `cpu`, or words of a device's name as
    in `slot list`, such as `H100` or `RTX 4090`. If empty, trials run on any device.

    Each word must be a whole word of the name. Case does not matter. All slots of the agent must
    match.
    """
    slot_memory: SizeBytes = None
    """The least memory of each device: bytes, or a size like `40 gb`. All slots of the agent must
    have the memory. Drivers report a little less than the nominal size, so that a tenth may lack.
    """
    native_parallel: bool = False
    """Accepted, but has no effect."""
    slots: CountOrZero | None = None
    """Accepted, but has no effect: `slots_per_trial` sets the slots of a trial."""
    devices: Annotated[tuple[DeviceField, ...], Field(strict=False)] = ()
    """Devices of the host for the container, as maps or as HOST_PATH:CONTAINER_PATH[:MODE].
    Only in containers.
    """
    is_single_node: bool | None = None
    """Whether all slots of a trial must be on one machine. In a trial on several machines, the
    processes find each other through the launcher, or through environment variables.
    """

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of the pools in the order of preference. ("",) for the default pool."""
        named = self.resource_pool
        return (named,) if isinstance(named, str) else named

    @field_validator("slots_per_trial")
    @classmethod
    def _check_slots(cls, slots: float, info: ValidationInfo) -> float:
        least = scope_of(info).rules.slots_per_trial_min
        if whole_slots(slots) < least:
            refuse(f"must be at least {least}, not {slots}")
        return slots

    @field_validator("max_slots")
    @classmethod
    def _check_max_slots(cls, max_slots: int | None, info: ValidationInfo) -> int | None:
        slots = whole_slots(info.data.get("slots_per_trial", 0))
        if max_slots is not None and max_slots < slots:
            hint = "no trial could ever start"
            refuse(f"must be at least slots_per_trial ({slots}), not {max_slots}", hint)
        return max_slots


Propagation = Literal["rprivate", "private", "rshared", "shared", "rslave", "slave"]


class BindMount(Section):
    """A directory of the host that trials can use."""

    host_path: AbsolutePath
    """The directory on the agent's machine. A trial fails to start if the directory is missing."""
    container_path: Text
    """The path of the directory for the trial. A relative path is below the working directory, but
    not the working directory itself. An absolute path other than `host_path` works only in
    containers.
    """
    read_only: bool = False
    """Whether the container cannot write to the directory. Only in containers."""
    propagation: Propagation = "rprivate"
    """How mounts below the directory are propagated. Only in containers."""

    @field_validator("container_path")
    @classmethod
    def _check_container_path(cls, path: str) -> str:
        if posixpath.normpath(path) == ".":
            refuse("must not be the working directory itself", "mount a folder below it instead")
        return path


BindMounts = Annotated[tuple[BindMount, ...], Field(strict=False)]
