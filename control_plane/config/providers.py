"""The section `provider` of a resource pool: what all clouds have in common.

A cloud's own section is in its folder, as `control_plane/CLOUD/pool_provider.py`;
`provider_types` names them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from control_plane.config import master_fields
from control_plane.config.durations import Duration, PositiveDuration
from control_plane.config.section import REVEAL, Secret, Section, refuse, refuse_at
from control_plane.field_types import Count, CountOrZero, Text
from control_plane.findings import value_text

Zones = Annotated[tuple[Text, ...], Field(strict=False)]
FreeMap = dict[str, Any]
VolumeGib = Annotated[int, Field(ge=100, le=64 * 1024)]
# Folders become part of the command of an instance's agent.
_FOLDER: Final = re.compile(r"(/[A-Za-z0-9._-]+)+\Z")


def _check_folder(path: str) -> str:
    if not _FOLDER.match(path) or {".", ".."} & {*path.split("/")}:
        refuse(f"must be a path like /mnt/data, of letters, digits and ._-, not {value_text(path)}")
    return path


Folder = Annotated[str, AfterValidator(_check_folder)]
Folders = Annotated[tuple[Folder, ...], Field(strict=False)]


def refuse_same_folders(folders: Sequence[str]) -> None:
    """Refuse file systems of a provider that are mounted in the same folder."""
    for place, folder in enumerate(folders):
        if folder in folders[:place]:
            loc = ("file_systems", place, "folder")
            refuse_at(loc, f"is that of another one, {folder}", "choose another", folder)


ReferenceSections = tuple[tuple[str, str, type[Section]], ...]
"""Sections within a provider's for the reference: title, path in words, and model of each."""


class OfferingConfig(Section):
    """One way to get an instance."""

    instance_type: Text
    """The cloud's name; on GCP with the accelerators, as n1-standard-8+nvidia-tesla-t4:2."""
    zone: str = ""
    """The zone; the provider's own if empty."""
    market: Literal["on_demand", "spot"] = "on_demand"
    """Spot instances are cheaper, and may be taken away; on-demand ones are not."""
    slots: CountOrZero = 1
    """Slots of one instance; in a cloud those of the type, if it is a known one."""
    price_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Dollars; 0 if nothing is paid. By default the cloud's current price, or a list price."""

    @property
    def name(self) -> str:
        """The name of the offering, unique in its pool."""
        return "/".join(filter(None, (self.instance_type, self.zone, self.market)))


Offerings = Annotated[tuple[OfferingConfig, ...], Field(strict=False)]


class Provider(Section):
    """How many instances a pool has, and when they come and go."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.PROVIDER
    reference_sections: ClassVar[ReferenceSections] = ()
    deployed_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that a deployment fills in: a configuration without them keeps the pool's."""
    type: str
    min_instances: CountOrZero = 0
    """The number of instances that the pool keeps even without work."""
    max_instances: Annotated[Count, Field(validate_default=True)] = 5
    """The largest number of instances."""
    max_idle_agent_period: PositiveDuration = 20 * 60_000
    """How long an instance without work is kept."""
    max_agent_starting_period: PositiveDuration = 20 * 60_000
    """How long an instance may take until its agent enrols."""
    launch_error_limit: CountOrZero | None = None
    """The number of failures in a row, other than a lack of capacity or quota, after which an
    offering is tried with one instance, once an hour at most, until one boots; 0 turns this off.
    The default is 10, or launch_error_retries + 1 if that is given.
    """
    launch_error_retries: CountOrZero = 0
    """Determined's name for launch_error_limit - 1; 0 has no effect."""
    launch_error_timeout: Duration | None = None
    """Accepted, but has no effect: launch errors are always shown, and retried with a back-off."""
    offerings: Offerings = ()
    """Instance types, zones and markets, in the order of preference; see Offerings. If absent,
    there is one, which the provider's own fields describe.
    """
    on_demand_fallback: bool = True
    """Whether on-demand offerings are used while no spot offering has capacity."""
    on_demand_base: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of instances that are always on demand."""
    startup_script: Secret | None = None
    """A script that an instance runs before its agent starts; shown as a mask."""
    container_startup_script: Secret | None = None
    """A script that runs in the agent's container before the agent starts; shown as a mask."""

    @field_validator("offerings")
    @classmethod
    def _check_offerings(cls, offerings: tuple[OfferingConfig, ...]) -> tuple[OfferingConfig, ...]:
        names = [offering.name for offering in offerings]
        for place, name in enumerate(names):
            if name in names[:place]:
                refuse_at((place,), f"lists an offering twice: {name}")
        return offerings

    @field_validator("max_instances")
    @classmethod
    def _check_most(cls, most: int, info: ValidationInfo) -> int:
        least = info.data.get("min_instances", 0)
        if most < least:
            refuse(f"must be at least min_instances ({least}), not {most}")
        return most

    def to_json(self) -> str:
        """Everything with defaults and secrets, in the words of the configuration, as the
        provisioner reads it.
        """
        return self.model_dump_json(context=REVEAL, exclude_none=True)

    @property
    def mounts_allowed(self) -> tuple[str, ...] | None:
        """The folders from which trials may mount paths; None for all that the agents allow."""
        return None

    def slots_offered(self) -> tuple[int, ...]:
        """The sizes of the instances it may launch, in slots; empty where nothing says them."""
        return tuple(sorted({offering.slots for offering in self.offerings}))
