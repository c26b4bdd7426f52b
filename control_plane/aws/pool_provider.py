"""The section `provider` of a pool whose instances are EC2 instances."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, NoReturn

from pydantic import AfterValidator, Field, field_validator, model_validator

from control_plane.aws.default_image import find_image_problem
from control_plane.aws.default_type import default_sizes, default_type_notice, find_default_type
from control_plane.aws.instance_types import (
    CPU_FAMILIES,
    GPU_TYPES,
    TYPE_DEFAULT,
    devices_of,
    slots_of,
)
from control_plane.config.machine_network import (
    MACHINE_NETWORK_FIELDS,
    Certificates,
    MachineProxy,
)
from control_plane.config.providers import (
    Folder,
    Folders,
    OfferingConfig,
    Provider,
    ReferenceSections,
    VolumeGib,
    Zones,
    image_findings,
    refuse_same_folders,
)
from control_plane.config.section import Section, refuse, refuse_at, with_defaults
from control_plane.field_types import CountOrZero, Text
from control_plane.findings import Finding, Loc, nearest_name_hint, value_text
from control_plane.scheduling.agent_needs import AgentDevice
from control_plane.text_forms import text_form

_PRICE: Final = re.compile(r"\d+(\.\d*)?\Z|\.\d+\Z")
# The characters that an instance's metadata allows in keys, because an instance reads its tags from
# the metadata.
_TAG_KEY: Final = re.compile(r"(?!aws:|detcloud-)[A-Za-z0-9+\-=.,_:@]{1,128}\Z")
_LOG_NAME = re.compile(r"[A-Za-z0-9._/-]{1,512}")
_RESERVATION: Final = re.compile(
    r"cr-[0-9a-f]{8,17}\Z|arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:\d{12}:group/[\w.-]{1,128}\Z"
)
TAGS_MAX: Final = 40


def _check_tag_key(key: str) -> str:
    """Return a tag's key unchanged. Raise PydanticCustomError for an invalid or reserved key."""
    if not _TAG_KEY.match(key):
        refuse(
            "must be 1 to 128 letters, digits and +-=.,_:@, and begin neither with aws: nor with"
            f" detcloud-, not {value_text(key)}"
        )
    return key


TagKey = Annotated[str, AfterValidator(_check_tag_key)]
TagValue = Annotated[str, Field(max_length=256)]


class NetworkInterface(Section):
    """The network connection of an EC2 instance."""

    public_ip: bool = True
    """Whether an instance gets a public address. Without a public address, the instance reaches the
    cluster through a NAT gateway or VPC endpoints.
    """
    subnet_id: str = ""
    """The subnet; if empty, the subnets of the default VPC."""
    subnet_ids: Zones = ()
    """More subnets, one for each further zone that may be used."""
    security_group_id: str = ""
    """The security group; if empty, the VPC's default security group."""


class Tag(Section):
    """A tag of an EC2 instance and its disks."""

    key: TagKey
    """The name of the tag."""
    value: TagValue = ""
    """The value of the tag."""


FileSystemId = Annotated[
    str,
    Field(
        pattern=text_form(
            r"^fs-[0-9a-f]{8,17}$", "the id of a file system, like fs-0123456789abcdef0"
        )
    ),
]
VolumeIops = Annotated[int, Field(ge=3000, le=80_000)]
VolumeThroughput = Annotated[int, Field(ge=125, le=2000)]
MountName = Annotated[
    str, Field(pattern=text_form(r"^[A-Za-z0-9]{0,8}$", "at most 8 letters and digits"))
]


class FileSystem(Section):
    """A file system that EC2 instances mount at boot."""

    id: FileSystemId
    """The id of the file system, fs-..., in the region of the pool."""
    folder: Folder
    """The folder where the file system is mounted. Trials may mount this folder, or folders in it.
    """
    type: Literal["efs", "fsx_lustre"] = "efs"
    """`efs`, or `fsx_lustre`, for which the machine image needs the Lustre client."""
    mount_name: MountName = ""
    """The mount name of a file system of FSx for Lustre."""

    @model_validator(mode="after")
    def _check_mount_name(self) -> FileSystem:
        if (self.type == "fsx_lustre") != bool(self.mount_name):
            text = "is what a file system of type fsx_lustre has, and no other"
            refuse_at(("mount_name",), text, "`aws fsx describe-file-systems` tells it", "")
        return self


FileSystems = Annotated[tuple[FileSystem, ...], Field(strict=False, max_length=8)]
Tags = Annotated[tuple[Tag, ...], Field(strict=False, max_length=TAGS_MAX)]


class AwsProvider(Provider):
    """Instances are EC2 instances."""

    blackwell_families: ClassVar[tuple[str, ...]] = ("g7.", "g7e.", "p6-", "p6e-")
    reference_sections: ClassVar[ReferenceSections] = (
        ("Network interfaces", "`provider.network_interface` of aws.", NetworkInterface),
        ("File systems", "An entry of `provider.file_systems` of aws.", FileSystem),
        ("Tags", "An entry of `provider.custom_tags` of aws.", Tag),
        ("Proxies", "`provider.proxy` of aws and gcp.", MachineProxy),
    )
    deployed_fields: ClassVar[tuple[str, ...]] = MACHINE_NETWORK_FIELDS

    type: Literal["aws"]
    region: str = ""
    """The region; if empty, the server's region."""
    ssh_key_name: str = ""
    """The key pair for logging in to instances; if empty, logging in is impossible."""
    instance_type: Text = TYPE_DEFAULT
    """The instance type of a pool without offerings. If absent, the cheapest type with
    `instance_slots` GPUs.
    """
    instance_slots: CountOrZero | None = None
    """Slots of the type; by default its GPUs. Required for types that the cluster does not know."""
    cpu_slots_allowed: bool = False
    """Whether a type without GPUs counts as one slot."""
    spot: bool = False
    """Whether instances without offerings are bought on the spot market."""
    spot_max_price: str = ""
    """The highest price of a spot instance, in dollars an hour; the on-demand price if empty."""
    image_id: str = ""
    """The machine image: ami-..., or resolve:ssm: and one of AWS's public parameters,
    /aws/service/...; AWS's Deep Learning Base AMI if empty.
    """
    root_volume_size: VolumeGib = 200
    """The size in GiB."""
    root_volume_iops: VolumeIops = 3000
    """I/O operations per second of the root disk, which is of type gp3; at most 500 per GiB. Values
    above 3000 cost extra.
    """
    root_volume_throughput: VolumeThroughput = 125
    """MiB per second of the root disk; at most a quarter of its operations per second. Values
    above 125 cost extra.
    """
    tag_key: TagKey = "managed_by"
    """The key of an additional tag of the pool's instances, to find them by."""
    tag_value: str = ""
    """The cluster's id if empty."""
    instance_name: Text = "determined-ai-agent"
    """The tag Name of the instances."""
    network_interface: NetworkInterface = Field(default_factory=NetworkInterface)
    """See Network interfaces."""
    iam_instance_profile_arn: str = ""
    """The ARN of the instance profile, which sets the role of the instances."""
    custom_tags: Tags = ()
    """More tags of the instances; see Tags."""
    allowed_mounts: Folders = ()
    """Folders of the instances. Trials may mount these folders and folders inside them, and use the
    devices inside them. No folders if empty.
    """
    file_systems: FileSystems = ()
    """File systems of EFS and FSx that the instances mount; see File systems."""
    proxy: MachineProxy = Field(default_factory=MachineProxy)
    """The proxy of the machines, which agents, Docker and trials use; see Proxies. By default the
    deployment's. `proxy: {}` uses none.
    """
    ca_certificates: Certificates = ""
    """Certificates of a company's own authorities in PEM form. The machines, Docker and trials
    trust them in addition to the public authorities. By default the deployment's.
    """
    efa: bool = True
    """Whether instances launched for a trial on several instances have Elastic Fabric Adapters,
    if their type supports adapters. Instances without public addresses have an adapter on each
    network card.
    """
    cluster_placement: bool = True
    """Whether instances launched for a trial on several instances are close to each other, in a
    cluster placement group.
    """
    capacity_reservation: str = ""
    """The capacity reservation, cr-..., that on-demand instances are launched into, or the ARN of a
    resource group of reservations. Instances beyond the group's capacity are bought on demand.
    """
    capacity_block: bool = False
    """Whether the reservation is a capacity block; no instances are bought beyond it."""
    log_group: str = ""
    """The CloudWatch log group, which must exist, that agents send their journals to; none if
    empty.
    """
    log_stream: str = ""
    """The log stream of all instances; if empty, each instance has one with its id."""

    @field_validator("spot_max_price")
    @classmethod
    def _check_price(cls, price: str) -> str:
        if price and not _PRICE.match(price):
            refuse(f"must be digits with at most one point, not {value_text(price)}")
        return price

    @field_validator("log_group", "log_stream")
    @classmethod
    def _check_log_name(cls, name: str) -> str:
        if name and not _LOG_NAME.fullmatch(name):
            refuse(
                "must be 1 to 512 letters, digits and . - _ / of a group or stream of CloudWatch, "
                f"not {value_text(name)}"
            )
        return name

    @field_validator("capacity_reservation")
    @classmethod
    def _check_reservation(cls, name: str) -> str:
        if name and not _RESERVATION.match(name):
            refuse(
                "must be the id of a capacity reservation, cr-..., or the ARN of a resource group"
                f" of some, not {value_text(name)}"
            )
        return name

    @model_validator(mode="after")
    def _check_disk(self) -> AwsProvider:
        """Raise ValidationError for a root disk that EC2 does not accept as a gp3 disk.

        EC2 limits the operations to 500 per GiB, and the throughput to a quarter of the operations.
        """
        operations, throughput = self.root_volume_iops, self.root_volume_throughput
        if operations > 500 * self.root_volume_size:
            text = f"must be at most 500 for each of {self.root_volume_size} GiB"
            refuse_at(("root_volume_iops",), text, "take a larger disk", operations)
        if 4 * throughput > operations:
            text = f"must be at most a quarter of root_volume_iops, {operations}"
            refuse_at(("root_volume_throughput",), text, "raise root_volume_iops", throughput)
        return self

    @model_validator(mode="after")
    def _check_folders(self) -> AwsProvider:
        refuse_same_folders([file_system.folder for file_system in self.file_systems])
        return self

    @model_validator(mode="after")
    def _choose_type(self) -> AwsProvider:
        """Return a copy with the type for `instance_slots`, if the section has slots and no type.

        Raise ValidationError if no type has this number of GPUs.
        """
        if self.instance_slots is None or not self._has_default_type:
            return self
        name = find_default_type(self.instance_slots)
        if not name:
            text = f"must be {default_sizes()} without an instance_type, not {self.instance_slots}"
            refuse_at(("instance_slots",), text, "name an instance_type", self.instance_slots)
        return with_defaults(self, instance_type=name)

    @model_validator(mode="after")
    def _check_types(self) -> AwsProvider:
        """Return a copy in which every offering has the slots of its type.

        Raise ValidationError for an unknown type without configured slots, and for slots that
        differ from the slots of a known type. Without offerings, check the section's own type in
        the same way. Also raise ValidationError for a capacity block without a reservation.
        """
        if self.capacity_block and not self.capacity_reservation:
            text = "needs the reservation of the block"
            refuse_at(("capacity_block",), text, "set its capacity_reservation", True)
        if not self.offerings and self._slots is None:
            _refuse_type(("instance_type",), self.instance_type, "instance_slots")
        if not self.offerings and self.instance_slots is not None:
            self._check_slots(("instance_slots",), self.instance_type, self.instance_slots)
        offerings = (self._with_slots(place, one) for place, one in enumerate(self.offerings))
        return self.model_copy(update={"offerings": tuple(offerings)})

    def submission_findings(self) -> Iterator[Finding]:
        """Yield a finding for each type that AWS's image cannot boot.

        Yield nothing if the section names an image.
        """
        if not self.image_id:
            yield from image_findings(self.offerings, self.instance_type, find_image_problem)

    def default_type_fields(self) -> dict[str, Any]:
        """Return `instance_type` for a section that names no type, or else {}."""
        return {"instance_type": self.instance_type} if self._has_default_type else {}

    def default_type_notice(self) -> str:
        """Return the notice about the type of a section without a configured type.

        Return "" if the section names a type.
        """
        return default_type_notice(self.instance_type) if self._has_default_type else ""

    def slots_offered(self) -> tuple[int, ...]:
        """Return the sizes in slots of the instances that the pool may launch, in ascending order.

        Without offerings, return the size of the section's own instance type.
        """
        return super().slots_offered() or (self._slots or 0,)

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the devices that the agent of an instance type reports. () for an unknown type."""
        return devices_of(instance_type)

    def types_offered(self) -> tuple[str, ...]:
        """Return the offered types. Without offerings, return the section's own type."""
        return super().types_offered() or (self.instance_type,)

    @property
    def has_own_machine_image(self) -> bool:
        """Whether the pool names a machine image."""
        return bool(self.image_id)

    @property
    def mounts_allowed(self) -> tuple[str, ...]:
        """The folders of an instance from which trials may mount paths, file systems included."""
        return (*self.allowed_mounts, *(file_system.folder for file_system in self.file_systems))

    @property
    def _has_default_type(self) -> bool:
        """Whether instances have a type that the section does not name."""
        return not self.offerings and "instance_type" not in self.model_fields_set

    @property
    def _slots(self) -> int | None:
        """The slots of an instance of the section's own type, for a pool without offerings.

        None for an unknown type without a configured number.
        """
        return slots_of(self.instance_type, self.instance_slots, self.cpu_slots_allowed)

    def _check_slots(self, loc: Loc, name: str, slots: int) -> None:
        """Raise ValidationError if an agent on an instance of type `name` offers other slots.

        The agent offers each GPU as a slot. An instance of a family without GPUs offers 1 slot with
        `cpu_slots_allowed` and no slot without. For these families, 0 is always accepted. Any
        number is accepted for an unknown type. `loc` is the path of the value in the section.
        """
        known = GPU_TYPES.get(name)
        if known is not None and known.gpus != slots:
            text = f"must be {known.gpus}, the GPUs of {name}, not {slots}: its agent offers each"
            refuse_at(loc, f"{text} of them", "leave it out", slots)
        offered = int(self.cpu_slots_allowed)
        if name.partition(".")[0] in CPU_FAMILIES and slots not in (0, offered):
            text = f"must be {offered}, not {slots}: {name} has no GPU, and so one slot"
            refuse_at(loc, f"{text} with cpu_slots_allowed and none without", "leave it out", slots)

    def _with_slots(self, place: int, offering: OfferingConfig) -> OfferingConfig:
        """Return an offering whose slots are set from the type or from the configured number.

        Raise ValidationError for an unknown type without configured slots, and for wrong slots.
        `place` is the index of the offering.
        """
        said = offering.slots if "slots" in offering.model_fields_set else None
        if said is not None:
            self._check_slots(("offerings", place, "slots"), offering.instance_type, said)
        slots = slots_of(offering.instance_type, said, self.cpu_slots_allowed)
        if slots is None:
            loc = ("offerings", place, "instance_type")
            _refuse_type(loc, offering.instance_type, "slots")
        return offering.model_copy(update={"slots": slots})


def _refuse_type(loc: Loc, name: str, setting: str) -> NoReturn:
    """Raise ValidationError for an unknown instance type at `loc`.

    The hint names a similar known type, and `setting`, the option for the type's slots.
    """
    hint = nearest_name_hint(name, GPU_TYPES)
    remedy = f"set its {setting}, the GPUs that `aws ec2 describe-instance-types` tells"
    hint = f"{hint} If not, {remedy}" if hint.startswith("did") else remedy
    refuse_at(loc, f"is not a known instance type: {value_text(name)}", hint, name)
