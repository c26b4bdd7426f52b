"""The section `provider` of a resource pool: the fields that all clouds have in common.

The section of each cloud is in `control_plane/CLOUD/pool_provider.py`. provider_types.py lists the
sections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from control_plane.config import master_fields
from control_plane.config.durations import Duration, PositiveDuration
from control_plane.config.section import REVEAL, Secret, Section, refuse, refuse_at
from control_plane.field_types import Count, CountOrZero, Text
from control_plane.findings import Finding, Loc, value_text
from control_plane.fleet.gpu_models import ImageProblem
from control_plane.scheduling.agent_needs import AgentDevice, AgentNeeds, meets_device_needs

Zones = Annotated[tuple[Text, ...], Field(strict=False)]
FreeMap = dict[str, Any]
VolumeGib = Annotated[int, Field(ge=100, le=64 * 1024)]
# Folders become part of an agent's command line, so only harmless characters are allowed.
_FOLDER: Final = re.compile(r"(/[A-Za-z0-9._-]+)+\Z")


def _check_folder(path: str) -> str:
    if not _FOLDER.match(path) or {".", ".."} & {*path.split("/")}:
        refuse(f"must be a path like /mnt/data, of letters, digits and ._-, not {value_text(path)}")
    return path


Folder = Annotated[str, AfterValidator(_check_folder)]
Folders = Annotated[tuple[Folder, ...], Field(strict=False)]


def refuse_same_folders(folders: Sequence[str]) -> None:
    """Raise ValidationError at the first file system with the folder of an earlier file system.

    Args:
        folders: the folders of the provider's `file_systems`, in the same order.
    """
    for place, folder in enumerate(folders):
        if folder in folders[:place]:
            loc = ("file_systems", place, "folder")
            refuse_at(loc, f"is that of another one, {folder}", "choose another", folder)


ReferenceSections = tuple[tuple[str, str, type[Section]], ...]
"""The sections inside a provider's section, for the reference: title, path in words, and model."""


class OfferingConfig(Section):
    """A kind of instance that a pool may launch: instance type, zone and market."""

    instance_type: Text
    """The cloud's name of the instance type. On GCP the name includes the accelerators, for example
    `n1-standard-8+nvidia-tesla-t4:2`.
    """
    zone: str = ""
    """The zone. If empty, the zones of the provider."""
    market: Literal["on_demand", "spot"] = "on_demand"
    """The market. Spot instances are cheaper, but the cloud may interrupt them at any time."""
    slots: CountOrZero = 1
    """The number of slots of an instance. In a cloud, the default is the number of slots of the
    instance type. An instance type that detcloud does not know has no default.
    """
    price_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """The price of an instance in dollars per hour; 0 for instances without costs. By default the
    cloud's current price, or a list price.
    """

    @property
    def name(self) -> str:
        """The name of the offering, which is unique in its pool: "TYPE/ZONE/MARKET".

        An empty zone is left out.
        """
        return "/".join(filter(None, (self.instance_type, self.zone, self.market)))


Offerings = Annotated[tuple[OfferingConfig, ...], Field(strict=False)]


def image_findings(
    offerings: Sequence[OfferingConfig],
    default_type: str,
    find_problem: Callable[[str], ImageProblem | None],
) -> Iterator[Finding]:
    """Yield a finding for each instance type of a section that the default image cannot boot.

    Args:
        offerings: the section's offerings. Without offerings, `default_type` is launched.
        default_type: the type of the field `instance_type`.
        find_problem: returns why the default image cannot boot a type, or None.
    """
    named: list[tuple[Loc, str]] = [
        (("offerings", place, "instance_type"), offering.instance_type)
        for place, offering in enumerate(offerings)
    ]
    for loc, name in named or [(("instance_type",), default_type)]:
        if problem := find_problem(name):
            yield Finding(loc, f"cannot boot {name}: {problem.text}", problem.remedy, name)


class Provider(Section):
    """The settings by which a pool launches and terminates instances."""

    unknown_field_hints: ClassVar[Mapping[str, str]] = master_fields.PROVIDER
    reference_sections: ClassVar[ReferenceSections] = ()
    deployed_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that a deployment fills in. A new configuration without them keeps the pool's
    values.
    """
    blackwell_families: ClassVar[tuple[str, ...]] = ()
    """The beginnings of names of instance types with GPUs of the generation Blackwell."""
    type: str
    min_instances: CountOrZero = 0
    """The number of instances that the pool keeps even without work."""
    max_instances: Annotated[Count, Field(validate_default=True)] = 5
    """The largest number of instances."""
    max_idle_agent_period: PositiveDuration = 20 * 60_000
    """How long an instance without work is kept."""
    max_agent_starting_period: PositiveDuration = 20 * 60_000
    """The longest time from the launch of an instance to the enrolment of the agent."""
    launch_error_limit: CountOrZero | None = None
    """The number of consecutive failures after which the pool gives up an offering. 0: never. The
    default is 10, or `launch_error_retries` + 1 if `launch_error_retries` is given.

    Failures from a lack of capacity or quota, and from throttling, do not count. The pool tries a
    given-up offering with a single instance, at most once an hour, until the agent of an instance
    enrols.
    """
    launch_error_retries: CountOrZero = 0
    """Determined's setting: `launch_error_limit` - 1. 0 has no effect."""
    launch_error_timeout: Duration | None = None
    """Accepted, but has no effect: launch errors are always shown, and retried with a back-off."""
    offerings: Offerings = ()
    """The instance types, zones and markets in the order of preference; see Offerings. If absent,
    the provider's own fields describe a single offering.
    """
    on_demand_fallback: bool = True
    """Whether on-demand offerings are used while no spot offering has capacity."""
    on_demand_base: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the pool's instances that are always on demand."""
    startup_script: Secret | None = None
    """A script that an instance runs before the agent starts; shown as a mask."""
    container_startup_script: Secret | None = None
    """Accepted, but has no effect: an instance's agent runs in no container. Shown as a mask."""

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
        """Return all fields that are not None as JSON for the provisioner, secrets unmasked.

        Defaults are included. Durations are texts such as "20m".
        """
        return self.model_dump_json(context=REVEAL, exclude_none=True)

    @property
    def mounts_allowed(self) -> tuple[str, ...] | None:
        """The folders of the host from which trials may mount paths.

        None: all folders that the agents allow. Clouds override this property.
        """
        return None

    def submission_findings(self) -> Iterator[Finding]:
        """Yield the problems of a new configuration that stored configurations may have.

        Instances of such a pool do not boot. A stored configuration with these problems stays
        readable, because otherwise a single pool would prevent every request to the cluster. The
        paths begin at the section. Clouds override this method.
        """
        return iter(())

    def default_type_fields(self) -> dict[str, Any]:
        """Return the fields for the instance type of a section without a configured type.

        Return {} if the section names a type. Clouds override this method.
        """
        return {}

    def default_type_notice(self) -> str:
        """Return the notice about the instance type of a section without a configured type.

        Return "" if the section names a type. Clouds override this method.
        """
        return ""

    @classmethod
    def complete_stored(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a stored section with the defaults of the storing version.

        Only defaults that have changed since, and that stored sections omit, are added. Clouds
        override this method.
        """
        return fields

    def slots_offered(self) -> tuple[int, ...]:
        """Return the distinct sizes of launchable instances in slots, the smallest first.

        Return an empty tuple without offerings. Clouds override this method for this case.
        """
        return tuple(sorted({offering.slots for offering in self.offerings}))

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the devices that the agent of an instance type reports, each once.

        Return () for an unknown type. Clouds override this method.
        """
        return ()

    def slots_offered_with(self, needs: AgentNeeds) -> tuple[int, ...]:
        """Return the distinct sizes of launchable instances whose devices meet the needs.

        The sizes are in slots, the smallest first. Unknown types meet no needs for devices. Without
        offerings, the pool launches a single type.
        """
        if self.offerings:
            able = {
                offering.slots
                for offering in self.offerings
                if meets_device_needs(self.devices_of(offering.instance_type), needs)
            }
            return tuple(sorted(able))
        devices = {device for one in self.types_offered() for device in self.devices_of(one)}
        return self.slots_offered() if meets_device_needs(tuple(devices), needs) else ()

    def types_offered(self) -> tuple[str, ...]:
        """Return the names of instance types that the pool may launch, in the offerings' order.

        Return an empty tuple without offerings. Clouds override this method for this case.
        """
        return tuple(dict.fromkeys(offering.instance_type for offering in self.offerings))

    def blackwell_types(self) -> tuple[str, ...]:
        """Return the offered instance types with GPUs of NVIDIA's generation Blackwell."""
        return tuple(one for one in self.types_offered() if one.startswith(self.blackwell_families))

    @property
    def has_own_machine_image(self) -> bool:
        """Whether instances boot a configured machine image, which may contain container images."""
        return False
