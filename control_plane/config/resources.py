"""Slots, queueing, mounts and devices of a trial's container."""

from __future__ import annotations

import posixpath
import re
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
from control_plane.field_types import COUNT_MAX, CountOrZero, Text
from control_plane.findings import value_text

_SIZE: Final = re.compile(
    r"(\d{1,15}(?:\.\d{1,9})?|\.\d{1,9})\s*([kmgtp]?)(?:i?b)?\Z", re.IGNORECASE
)
_POWERS: Final = {unit: 1024**power for power, unit in enumerate(("", "k", "m", "g", "t", "p"))}


def _parse_size(value: object) -> object:
    """Convert a size like "1.5 gb" to bytes, 1 kb being 1024; other values stay as they are."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value.strip())
    if match is None:
        refuse(f"must be a number of bytes or a size like '1.5 gb', not {value_text(value)}")
    return int(float(match[1]) * _POWERS[match[2].lower()])


def _parse_device(value: object) -> object:
    """Convert a device written host_path:container_path[:mode] to its map."""
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


# Each is tried in turn, so that a longer list is a mistake rather than a preference.
POOLS_MAX: Final = 16


def _parse_pool_names(value: object) -> str | tuple[str, ...]:
    """Parse the name of a pool, or a list of names; a list of one is that name."""
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


DeviceMode = Annotated[str, AfterValidator(_check_mode)]


class Device(Section):
    """A device of the host that containers may use."""

    host_path: AbsolutePath
    """The device on the host."""
    container_path: AbsolutePath
    """Where it appears in the container."""
    mode: DeviceMode = "mrw"
    """Of read, write and mknod."""


DeviceField = Annotated[Device, BeforeValidator(_parse_device)]


class Resources(Section):
    """The resources that the trials of an experiment may use."""

    slots_per_trial: CountOrZero = 1
    """The number of slots (devices) of each trial; 0 is allowed in the length era only."""
    max_slots: CountOrZero | None = None
    """The largest number of slots that all trials of the experiment hold together. Changed later
    with `experiment set max-slots`.
    """
    weight: Annotated[float, Field(gt=0)] = 1.0
    """The weight of the experiment's share in a pool with the fair-share scheduler. Changed later
    with `experiment set weight`.
    """
    priority: Annotated[int, Field(ge=1, le=99)] | None = None
    """The experiment's priority in a pool with the priority scheduler, 1 being the first; the
    pool's default if absent. Changed later with `experiment set priority`.
    """
    resource_pool: PoolNames = ""
    """The pool to run in; if empty, the cluster's default pool for trials with slots or for trials
    without. A list names several in the order of preference: the job waits in the first and moves
    to the next after `pool_patience`. Changed later with `job update --resource-pool`, after which
    the job stays in the new pool.
    """
    pool_patience: PositiveDuration = 600_000
    """How long the job waits in a pool of several before it moves to the next. It leaves a pool
    that cannot give it slots at once. Has no effect with a single pool.
    """
    deadline: Deadline | None = None
    """When the experiment has to be done: a duration from its submission like `6h`, `90m` or `2d`,
    or a time with its zone like `2027-01-31T18:00:00+01:00`. Spot machines are used as far as that
    allows.
    """
    max_cost: Cost | None = None
    """Dollars that the experiment may cost, at the prices that the cluster has recorded for the
    pool's instances; the experiment is paused before it costs more. Changed later with `experiment
    set max-cost`.
    """
    shm_size: Annotated[
        Annotated[int, Field(ge=0, le=COUNT_MAX)] | None, BeforeValidator(_parse_size)
    ] = None
    """Bytes of /dev/shm in the container, or a size like `1.5 gb`. Only in containers."""
    agent_label: str = ""
    """Trials run only on agents with this label; those without one only on agents without."""
    native_parallel: bool = False
    """Accepted, but has no effect."""
    slots: CountOrZero | None = None
    """Accepted, but has no effect: `slots_per_trial` says how many a trial has."""
    devices: Annotated[tuple[DeviceField, ...], Field(strict=False)] = ()
    """Devices of the host for the container, also written HOST_PATH:CONTAINER_PATH[:MODE].
    Only in containers.
    """
    is_single_node: bool | None = None
    """Whether all slots of a trial must be on one machine. The nodes of a trial on several find
    each other by its launcher, or by the variables of its environment.
    """

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of the pools in the order of preference; "" alone for the default one."""
        named = self.resource_pool
        return (named,) if isinstance(named, str) else named

    @field_validator("slots_per_trial")
    @classmethod
    def _check_slots(cls, slots: int, info: ValidationInfo) -> int:
        least = scope_of(info).rules.slots_per_trial_min
        if slots < least:
            refuse(f"must be at least {least}, not {slots}")
        return slots

    @field_validator("max_slots")
    @classmethod
    def _check_max_slots(cls, max_slots: int | None, info: ValidationInfo) -> int | None:
        slots = info.data.get("slots_per_trial", 0)
        if max_slots is not None and max_slots < slots:
            hint = "no trial could ever start"
            refuse(f"must be at least slots_per_trial ({slots}), not {max_slots}", hint)
        return max_slots


Propagation = Literal["rprivate", "private", "rshared", "shared", "rslave", "slave"]


class BindMount(Section):
    """A directory of the host inside the container."""

    host_path: AbsolutePath
    """The directory on the agent's machine; a trial fails to start where it is missing."""
    container_path: Text
    """Where the directory appears. A relative path is below the working directory, and not that
    directory itself. An absolute path other than `host_path` works only in containers.
    """
    read_only: bool = False
    """Whether the container may not write to it. Only in containers."""
    propagation: Propagation = "rprivate"
    """How mounts below the directory are propagated. Only in containers."""

    @field_validator("container_path")
    @classmethod
    def _check_container_path(cls, path: str) -> str:
        if posixpath.normpath(path) == ".":
            refuse("must not be the working directory itself", "mount a folder below it instead")
        return path


BindMounts = Annotated[tuple[BindMount, ...], Field(strict=False)]
