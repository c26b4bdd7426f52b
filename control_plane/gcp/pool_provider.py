"""The section `provider` of a pool whose instances are Compute Engine instances."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, NoReturn

from pydantic import (
    AfterValidator,
    Field,
    field_validator,
    model_validator,
)

from control_plane.config.durations import PositiveDuration
from control_plane.config.machine_network import (
    MACHINE_NETWORK_FIELDS,
    Certificates,
    MachineProxy,
)
from control_plane.config.providers import (
    Folders,
    OfferingConfig,
    Provider,
    ReferenceSections,
    VolumeGib,
    Zones,
    image_findings,
    refuse_same_folders,
)
from control_plane.config.section import CarriedMap, Section, refuse, refuse_at, with_defaults
from control_plane.field_types import CountOrZero
from control_plane.findings import Finding, Loc, nearest_name_hint, value_text
from control_plane.gcp.default_image import find_image_problem
from control_plane.gcp.default_type import (
    default_sizes,
    default_type_notice,
    find_default_type,
    n1_type_for,
)
from control_plane.gcp.machine_sections import DescribedTypes, MachineConfig, MachineTypeConfig
from control_plane.gcp.machine_types import (
    FORMER_N1_ACCELERATORS,
    GPU_TYPES,
    N1_TYPES,
    MachineTypes,
    attachment_problem,
    devices_of,
    gpus_of,
    machine_series,
    parse_instance_type,
    slots_of,
)
from control_plane.gcp.nfs_shares import NfsShare, NfsShares
from control_plane.gcp.zones import region_of
from control_plane.scheduling.agent_needs import AgentDevice

_LABEL_KEY: Final = re.compile(r"(?!detcloud-)[a-z][-_a-z0-9]{0,62}\Z")
_LABEL_VALUE: Final = re.compile(r"[-_a-z0-9]{0,63}\Z")
# At most 30 of the 63 characters of an instance's name, because the rest of the name needs half.
_NAME_PREFIX: Final = re.compile(r"[a-z][-a-z0-9]{0,29}\Z")
_NETWORK_TAG: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
SCOPE_DEFAULT: Final = "https://www.googleapis.com/auth/cloud-platform"
# Properties of an instance that must be set by other fields of the section, by property.
_FIELDS_FOR_PROPERTIES: Final[Mapping[str, str]] = {
    "machineType": "instance_type or offerings",
    "guestAccelerators": "instance_type or offerings",
    "serviceAccounts": "service_account",
    "name": "name_prefix",
}
_STARTUP_SCRIPT: Final = "startup-script"


def _check_label_key(key: str) -> str:
    """Return a label's key unchanged. Raise PydanticCustomError for an invalid or reserved key.

    Reserved keys begin with `detcloud-`.
    """
    if not _LABEL_KEY.match(key):
        refuse(
            "must be 1 to 63 lowercase letters, digits, _ and -, begin with a letter and not with"
            f" detcloud-, not {value_text(key)}"
        )
    return key


def _check_label_value(value: str) -> str:
    """Return a label's value unchanged. Raise PydanticCustomError for an invalid value."""
    if not _LABEL_VALUE.match(value):
        refuse(f"must be at most 63 lowercase letters, digits, _ and -, not {value_text(value)}")
    return value


LabelKey = Annotated[str, AfterValidator(_check_label_key)]
LabelValue = Annotated[str, AfterValidator(_check_label_value)]


class NetworkConfig(Section):
    """The network connection of a Compute Engine instance."""

    network: str = ""
    """The network, a name or a path; the deployment's, or the project's `default`, if empty."""
    subnetwork: str = ""
    """The subnetwork in the pool's region, a name or a path."""
    external_ip: bool = False
    """Whether an instance gets a public address in this network. Without a public address, the
    instance reaches the cluster through Cloud NAT.
    """


class AccountConfig(Section):
    """The service account of Compute Engine instances."""

    email: str = ""
    """The address of the account; the deployment's if empty."""
    scopes: Zones = (SCOPE_DEFAULT,)
    """The scopes of the account's access tokens. The account's roles decide their permissions."""


class GcpProvider(Provider):
    """Instances are Compute Engine instances."""

    reference_sections: ClassVar[ReferenceSections] = (
        ("Machines", "`provider.instance_type` of gcp.", MachineConfig),
        ("Machine types", "`provider.machine_types` of gcp.", MachineTypeConfig),
        ("Networks", "`provider.network_interface` of gcp.", NetworkConfig),
        ("NFS shares", "An entry of `provider.file_systems` of gcp.", NfsShare),
        ("Service accounts", "`provider.service_account` of gcp.", AccountConfig),
    )

    deployed_fields: ClassVar[tuple[str, ...]] = ("machine_types", *MACHINE_NETWORK_FIELDS)
    blackwell_families: ClassVar[tuple[str, ...]] = ("a4-", "a4x-", "g4-")

    type: Literal["gcp"]
    project: str = ""
    """The project; if empty, the server's project."""
    region: str = ""
    """The region; if empty, the region of the zone, or the server's region."""
    zone: str = ""
    """The only zone to use; all zones of the region if empty."""
    instance_type: MachineConfig = Field(default_factory=lambda: MachineConfig.model_validate({}))
    """The machine type of a pool without offerings; see Machines."""
    instance_slots: CountOrZero | None = None
    """Slots of the machine type; required for types that the cluster does not know."""
    cpu_slots_allowed: bool = False
    """Whether a type without GPUs counts as one slot."""
    machine_types: DescribedTypes = Field(default_factory=dict)
    """Machine types by name, for types that the cluster does not know or that differ; see Machine
    types. `detcloud deploy gcp` adds Compute Engine's description of all types of the pool.
    """
    base_config: CarriedMap = Field(default_factory=dict)
    """Properties of an instance in the form of the cloud's API: more disks, labels, metadata,
    network interfaces. Other fields of this section take precedence.
    """
    boot_disk_size: VolumeGib = 200
    """The size in GiB."""
    boot_disk_type: str = ""
    """The kind of disk; if empty, pd-standard, or the cheapest kind for the machine type."""
    boot_disk_source_image: str = ""
    """The machine image; Google's image of Ubuntu with drivers for accelerators if empty."""
    label_key: LabelKey = "managed-by"
    """The key of an additional label of the pool's instances, to find them by."""
    label_value: LabelValue = ""
    """The cluster's id if empty."""
    name_prefix: str = ""
    """The prefix of the names of instances; detcloud if empty."""
    network_interface: NetworkConfig = Field(default_factory=NetworkConfig)
    """See Networks."""
    network_tags: Zones = ()
    """Network tags, for firewall rules."""
    service_account: AccountConfig = Field(default_factory=AccountConfig)
    """See Service accounts."""
    allowed_mounts: Folders = ()
    """Folders of the instances. Trials may mount these folders and folders inside them, and use the
    devices inside them. No folders if empty.
    """
    file_systems: NfsShares = ()
    """Shares of NFS that instances mount as they boot; see NFS shares."""
    proxy: MachineProxy = Field(default_factory=MachineProxy)
    """The proxy of the machines, which agents, Docker and trials use; see Proxies. By default the
    deployment's. `proxy: {}` uses none.
    """
    ca_certificates: Certificates = ""
    """Certificates of a company's own authorities in PEM form. The machines, Docker and trials
    trust them in addition to the public authorities. By default the deployment's.
    """
    extended_preemption_notice: bool = False
    """Whether spot instances get notice 120 s before their shutdown begins, if their machine type
    allows this. Otherwise the shutdown begins at once.
    """
    operation_timeout_period: PositiveDuration = 5 * 60_000
    """Accepted, but has no effect: each pass polls an operation, for up to 10 minutes."""
    use_cloud_logging: bool = False
    """Whether the agents' journals go to Cloud Logging, which the service account must be allowed
    to write to.
    """

    @field_validator("zone")
    @classmethod
    def _check_zone(cls, zone: str) -> str:
        if zone and not region_of(zone):
            refuse(f"must be the name of a zone, such as us-central1-a, not {value_text(zone)}")
        return zone

    @field_validator("name_prefix")
    @classmethod
    def _check_name_prefix(cls, prefix: str) -> str:
        if prefix and not _NAME_PREFIX.match(prefix):
            refuse(
                "must be 1 to 30 lowercase letters, digits and -, and begin with a letter,"
                f" not {value_text(prefix)}"
            )
        return prefix

    @field_validator("network_tags")
    @classmethod
    def _check_network_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        for place, tag in enumerate(tags):
            if not _NETWORK_TAG.match(tag):
                text = "must be 1 to 63 lowercase letters, digits and -, and begin with a letter"
                refuse_at((place,), f"{text}, not {value_text(tag)}", "", tag)
        return tags

    @field_validator("base_config")
    @classmethod
    def _check_base_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Return the properties unchanged.

        Raise ValidationError for a property that another field sets, for parts of a wrong form, for
        an invalid label or one that begins with `detcloud-`, and for a startup script.
        """
        for name, field in _FIELDS_FOR_PROPERTIES.items():
            if name in config:
                refuse_at((name,), "is set by another field", f"use {field}")
        for name, kind in (("labels", dict), ("scheduling", dict), ("tags", dict)):
            if not isinstance(config.get(name, {}), kind):
                refuse_at((name,), "must be a map")
        for name in ("disks", "networkInterfaces"):
            entries = config.get(name, [])
            if not isinstance(entries, list) or not all(
                isinstance(entry, dict) for entry in entries
            ):
                refuse_at((name,), "must be a list of maps")
        for key, value in config.get("labels", {}).items():
            is_text = isinstance(value, str)
            if not (is_text and _LABEL_KEY.match(str(key)) and _LABEL_VALUE.match(value)):
                hint = "" if is_text else "write its value in quotes"
                text = "must be a label of lowercase letters, digits, _-"
                refuse_at(("labels", str(key)), text, hint)
        _check_metadata(config.get("metadata", {}))
        return config

    @field_validator("machine_types")
    @classmethod
    def _check_described(cls, types: DescribedTypes) -> DescribedTypes:
        """Return the types unchanged. Raise ValidationError for a name with accelerators or an
        invalid name.
        """
        for name in types:
            instance = parse_instance_type(name)
            if instance is None or instance.number:
                refuse_at((name,), "must be a machine type without accelerators", "", name)
        return types

    @model_validator(mode="after")
    def _check_places(self) -> GcpProvider:
        """Return a copy with the pool's region: the configured region, or else that of the zone.

        Without both, the region stays empty, and zones of several regions pass. The provisioner
        finds a moved pool's instances by this region. Raise ValidationError for an invalid zone and
        for a zone outside the region, offerings included.
        """
        region = self.region or region_of(self.zone)
        zones: list[tuple[Loc, str]] = [(("zone",), self.zone)]
        zones += [
            (("offerings", place, "zone"), offering.zone)
            for place, offering in enumerate(self.offerings)
        ]
        for loc, zone in zones:
            if zone and not region_of(zone):
                text = f"must be the name of a zone, such as us-central1-a, not {value_text(zone)}"
                refuse_at(loc, text, "", zone)
            if zone and region and region_of(zone) != region:
                refuse_at(loc, f"is not in the pool's region, {region}: {zone}", "", zone)
        return self.model_copy(update={"region": region})

    @model_validator(mode="after")
    def _check_folders(self) -> GcpProvider:
        refuse_same_folders([file_system.folder for file_system in self.file_systems])
        return self

    @model_validator(mode="after")
    def _choose_type(self) -> GcpProvider:
        """Return a copy with a machine type that fits, if the section names no machine type.

        `gpu_num` or `gpu_type` select an N1 type, and otherwise `instance_slots` the cheapest type
        with this number of GPUs. Raise ValidationError if no type has this number.
        """
        machine, slots = self.instance_type, self.instance_slots
        if not self._has_default_type:
            return self
        if not {"gpu_type", "gpu_num"}.isdisjoint(machine.model_fields_set):
            chosen = with_defaults(machine, machine_type=n1_type_for(machine.gpu_num or 0))
        elif slots is not None:
            found = find_default_type(slots)
            if found is None:
                text = f"must be {default_sizes()} without a machine_type, not {slots}"
                refuse_at(("instance_slots",), text, "name a machine_type", slots)
            attached = {"gpu_type": found.accelerator or None, "gpu_num": found.number or None}
            chosen = with_defaults(machine, machine_type=found.machine_type, **attached)
        else:
            return self
        return with_defaults(self, instance_type=chosen)

    @model_validator(mode="after")
    def _check_types(self) -> GcpProvider:
        """Return a copy in which every offering has the slots of its type.

        Raise ValidationError as `_with_slots` for the first wrong offering. Without offerings,
        check the section's own type with `instance_slots` in the same way. An invalid own type with
        configured slots passes.
        """
        if not self.offerings:
            name = self.default_type
            loc: Loc = ("instance_type", "machine_type")
            if self._slots is None:
                self._refuse_type(loc, name, "set its instance_slots")
            self._check_attachment(("instance_type", "gpu_type"), name)
            if self.instance_slots is not None:
                self._check_slots(("instance_slots",), name, self.instance_slots)
        offerings = (self._with_slots(place, one) for place, one in enumerate(self.offerings))
        return self.model_copy(update={"offerings": tuple(offerings)})

    def submission_findings(self) -> Iterator[Finding]:
        """Yield a finding for each type that Google's image cannot boot.

        Yield nothing if the section names an image.
        """
        if not self.boot_disk_source_image:
            find_problem = partial(find_image_problem, described=self.described_types)
            yield from image_findings(self.offerings, self.default_type, find_problem)

    def default_type_fields(self) -> dict[str, Any]:
        """Return the whole `instance_type` for a section without a machine type, or else {}."""
        machine = self.instance_type.model_dump(mode="json", exclude_none=True)
        return {"instance_type": machine} if self._has_default_type else {}

    def default_type_notice(self) -> str:
        """Return the notice about the type of a section without a configured machine type.

        Return "" if the section names a type, and for a type without GPUs.
        """
        instance = parse_instance_type(self.default_type)
        return default_type_notice(instance) if instance and self._has_default_type else ""

    @classmethod
    def complete_stored(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a stored section, with 4 accelerators for an N1 without a number."""
        machine = fields.get("instance_type")
        if not isinstance(machine, Mapping) or machine.get("gpu_num") is not None:
            return fields
        is_n1 = machine_series(str(machine.get("machine_type"))) == "n1"
        if not is_n1 or machine.get("gpu_type") == "":
            return fields
        return {**fields, "instance_type": {**machine, "gpu_num": FORMER_N1_ACCELERATORS}}

    def slots_offered(self) -> tuple[int, ...]:
        """Return the sizes in slots of the instances that the pool may launch, in ascending order.

        Each size occurs once. Without offerings, return the size of the section's own instance
        type.
        """
        return super().slots_offered() or (self._slots or 0,)

    @property
    def mounts_allowed(self) -> tuple[str, ...]:
        """The folders of an instance from which trials may mount paths, mounted shares included."""
        return (*self.allowed_mounts, *(file_system.folder for file_system in self.file_systems))

    @property
    def described_types(self) -> MachineTypes:
        """The section's machine types by name, in the form of the catalogue."""
        return {
            name: machine_type.machine_type for name, machine_type in self.machine_types.items()
        }

    @property
    def default_type(self) -> str:
        """The instance type without offerings, as text with attached accelerators."""
        return str(self.instance_type.instance_type(self.described_types))

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the devices that the agent of an instance type reports. () for an unknown type."""
        return devices_of(instance_type)

    def types_offered(self) -> tuple[str, ...]:
        """Return the offered types. Without offerings, return the section's own type."""
        return super().types_offered() or (self.default_type,)

    @property
    def has_own_machine_image(self) -> bool:
        """Whether the pool names a machine image."""
        return bool(self.boot_disk_source_image)

    @property
    def _has_default_type(self) -> bool:
        """Whether instances have a machine type that the section does not name."""
        return not self.offerings and "machine_type" not in self.instance_type.model_fields_set

    @property
    def _slots(self) -> int | None:
        """The slots of an instance of the section's own type, for a pool without offerings.

        None for an unknown type without a configured number.
        """
        return slots_of(
            self.default_type, self.instance_slots, self.cpu_slots_allowed, self.described_types
        )

    def _with_slots(self, place: int, offering: OfferingConfig) -> OfferingConfig:
        """Return an offering with configured slots unchanged, else a copy with the type's slots.

        Raise ValidationError for a type of a wrong form, for accelerators that cannot be attached,
        for configured slots that differ from the GPUs of a type with GPUs, and for an unknown type
        without configured slots. `place` is the index of the offering.
        """
        loc: Loc = ("offerings", place, "instance_type")
        name = offering.instance_type
        if parse_instance_type(name) is None:
            text = "must be a machine type, with accelerators as in n1-standard-8+nvidia-tesla-t4:2"
            refuse_at(loc, f"{text}, not {value_text(name)}", "", name)
        self._check_attachment(loc, name)
        if "slots" in offering.model_fields_set:
            self._check_slots(("offerings", place, "slots"), name, offering.slots)
            return offering
        slots = slots_of(name, None, self.cpu_slots_allowed, self.described_types)
        if slots is None:
            self._refuse_type(loc, name, "set its slots")
        return offering.model_copy(update={"slots": slots})

    def _check_attachment(self, loc: Loc, name: str) -> None:
        """Raise ValidationError if the accelerators of the instance type `name` cannot be attached.

        `loc` is the path of the value in the section. An invalid type passes.
        """
        instance = parse_instance_type(name)
        problem = attachment_problem(instance, self.described_types) if instance else ""
        if problem:
            refuse_at(loc, f"cannot be: {problem}", "", name)

    def _check_slots(self, loc: Loc, name: str, slots: int) -> None:
        """Raise ValidationError if `slots` differs from the GPUs of an instance type with GPUs.

        The agent offers each GPU as a slot. Any number passes for a type without GPUs and for an
        unknown type. `loc` is the path of the value in the section.
        """
        instance = parse_instance_type(name)
        gpus = gpus_of(instance, self.described_types) if instance else None
        if gpus and gpus != slots:
            text = f"must be {gpus}, the GPUs of {name}, not {slots}: its agent offers each of them"
            refuse_at(loc, text, "leave it out", slots)

    def _refuse_type(self, loc: Loc, name: str, remedy: str) -> NoReturn:
        """Raise ValidationError for an unknown machine type, with `name` as the value at `loc`.

        The hint names a similar known type, if one exists, and `remedy`.
        """
        remedy = f"{remedy}, or describe it in machine_types, as `detcloud deploy gcp` does"
        hint = nearest_name_hint(name, {*GPU_TYPES, *N1_TYPES, *self.machine_types})
        hint = f"{hint} If not, {remedy}" if hint.startswith("did") else remedy
        refuse_at(loc, f"is not a known machine type: {value_text(name)}", hint, name)


def _check_metadata(metadata: object) -> None:
    """Raise ValidationError for a startup script, and for metadata that the cloud does not accept.

    Valid metadata is a map with a list `items` of maps with the texts `key` and `value`.
    """
    items = metadata.get("items", []) if isinstance(metadata, dict) else None
    if not isinstance(items, list) or not all(
        isinstance(item, dict)
        and isinstance(item.get("key"), str)
        and isinstance(item.get("value"), str)
        for item in items
    ):
        refuse_at(("metadata",), "must be a map with `items`, each with a `key` and a `value`")
    if any(item["key"] == _STARTUP_SCRIPT for item in items):
        refuse_at(("metadata",), "must not have a startup-script", "use startup_script")
