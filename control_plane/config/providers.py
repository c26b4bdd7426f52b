"""Where the instances of a resource pool come from: one section for each kind of cloud."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from control_plane.config.durations import Duration, PositiveDuration
from control_plane.config.problems import Loc, nearest, value_text
from control_plane.config.section import (
    REVEAL,
    Count,
    CountOrZero,
    Secret,
    Section,
    Text,
    choose,
    refuse,
    refuse_at,
)
from control_plane.fleet.instance_types import GPU_TYPES, slots_of

_PRICE: Final = re.compile(r"\d+(\.\d*)?\Z|\.\d+\Z")
# What the keys of tags may consist of that an instance reads from its metadata.
_TAG_KEY: Final = re.compile(r"(?!aws:|detcloud-)[A-Za-z0-9+\-=.,_:@]{1,128}\Z")
# They stand in the command of an instance's agent.
_FOLDER: Final = re.compile(r"(/[A-Za-z0-9._-]+)+\Z")
TAGS_MAX: Final = 40

Zones = Annotated[tuple[Text, ...], Field(strict=False)]
FreeMap = dict[str, Any]


class OfferingConfig(Section):
    """One way to get an instance."""

    instance_type: Text
    """What the cloud calls it."""
    zone: str = ""
    """Where; the provider's own zone if empty."""
    market: Literal["on_demand", "spot"] = "on_demand"
    """What is paid for it, and whether it may be taken away."""
    slots: CountOrZero = 1
    """Slots of one instance; on AWS those of the type, if it is a known one."""
    price_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Dollars; 0 where nothing is paid. On AWS those that the cloud tells, or a list price."""

    @property
    def name(self) -> str:
        """What it is called: unique among the offerings of a pool."""
        return "/".join(filter(None, (self.instance_type, self.zone, self.market)))


Offerings = Annotated[tuple[OfferingConfig, ...], Field(strict=False)]


class Provider(Section):
    """How many instances a pool has, and when they come and go."""

    type: str
    min_instances: CountOrZero = 0
    """Instances that are there without work."""
    max_instances: Annotated[Count, Field(validate_default=True)] = 5
    """Instances at most."""
    max_idle_agent_period: PositiveDuration = 20 * 60_000
    """How long an instance without work is kept."""
    max_agent_starting_period: PositiveDuration = 20 * 60_000
    """How long an instance may take until its agent enrols."""
    launch_error_limit: CountOrZero | None = None
    """Failures in a row, other than a lack of capacity, after which an offering is given up until
    the pool's settings change; 0 for never. 10, or launch_error_retries + 1 if those are given.
    """
    launch_error_retries: CountOrZero = 0
    """The original's name for one less; 0 says nothing."""
    launch_error_timeout: Duration | None = None
    """Kept and shown: launch errors are always shown, and tried again ever more rarely."""
    offerings: Offerings = ()
    """Instance types, zones and markets, in the order of preference; see Offerings. Absent: what
    the provider's own fields describe.
    """
    on_demand_fallback: bool = True
    """Whether on-demand offerings are taken while no spot offering can be had."""
    on_demand_base: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of instances that are on demand all the same."""
    startup_script: Secret | None = None
    """Run by an instance before its agent starts; shown as a mask."""
    container_startup_script: Secret | None = None
    """Run in the agent's container before the agent starts; shown as a mask."""

    @field_validator("offerings")
    @classmethod
    def _check_offerings(cls, offerings: tuple[OfferingConfig, ...]) -> tuple[OfferingConfig, ...]:
        names = [offering.name for offering in offerings]
        for place, name in enumerate(names):
            if name in names[:place]:
                refuse_at((place,), f"is offered twice: {name}")
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
        """The folders of which trials may mount parts; None for any that the agents let them."""
        return None

    def slots_offered(self) -> tuple[int, ...]:
        """The sizes of the instances it may launch, in slots; empty where nothing says them."""
        return tuple(sorted({offering.slots for offering in self.offerings}))


class LocalProvider(Provider):
    """Instances are agent processes on the machine of the cluster's server."""

    type: Literal["local"]
    instance_slots: Count = 1
    """Slots of one instance, on CPUs."""

    def slots_offered(self) -> tuple[int, ...]:
        """As for every provider."""
        return super().slots_offered() or (self.instance_slots,)


def _tag_key(key: str) -> str:
    if not _TAG_KEY.match(key):
        refuse(
            "must be 1 to 128 letters, digits and +-=.,_:@, and begin neither with aws: nor with"
            f" detcloud-, not {value_text(key)}"
        )
    return key


TagKey = Annotated[str, AfterValidator(_tag_key)]


class NetworkInterface(Section):
    """How an EC2 instance is connected."""

    public_ip: bool = True
    """Whether it gets a public address; without one it reaches the cluster through a NAT gateway
    or endpoints.
    """
    subnet_id: str = ""
    """The subnet; those of the default VPC if there is none."""
    subnet_ids: Zones = ()
    """More subnets, one for each further zone that may be used."""
    security_group_id: str = ""
    """The security group; the VPC's default one if empty."""


class Tag(Section):
    """A tag of an EC2 instance and its disks."""

    key: TagKey
    """Its name."""
    value: Annotated[str, Field(max_length=256)] = ""
    """What it says."""


def _folder(path: str) -> str:
    if not _FOLDER.match(path) or {".", ".."} & {*path.split("/")}:
        refuse(f"must be a path like /mnt/data, of letters, digits and ._-, not {value_text(path)}")
    return path


Folders = Annotated[tuple[Annotated[str, AfterValidator(_folder)], ...], Field(strict=False)]
Tags = Annotated[tuple[Tag, ...], Field(strict=False, max_length=TAGS_MAX)]


class AwsProvider(Provider):
    """Instances are EC2 instances."""

    type: Literal["aws"]
    region: str = ""
    """The server's own if empty."""
    ssh_key_name: str = ""
    """The key pair that may log in; nobody may if empty."""
    instance_type: Text = "g4dn.metal"
    """The type where there are no offerings."""
    instance_slots: CountOrZero | None = None
    """Slots of the type; needed where it is none of the known ones."""
    cpu_slots_allowed: bool = False
    """Whether a type without GPUs counts as one slot."""
    spot: bool = False
    """Whether instances without offerings are bought on the spot market."""
    spot_max_price: str = ""
    """Dollars an hour at most; the on-demand price if empty."""
    image_id: str = ""
    """The machine image; AWS's Deep Learning Base AMI if empty."""
    root_volume_size: Annotated[int, Field(ge=100, le=64 * 1024)] = 200
    """GiB."""
    tag_key: TagKey = "managed_by"
    """One more tag of its instances, for those who look for them."""
    tag_value: str = ""
    """The cluster's id if empty."""
    instance_name: Text = "determined-ai-agent"
    """The tag Name."""
    network_interface: NetworkInterface = Field(default_factory=NetworkInterface)
    """See Network interfaces."""
    iam_instance_profile_arn: str = ""
    """The role that instances have."""
    custom_tags: Tags = ()
    """More tags; see Tags."""
    allowed_mounts: Folders = ()
    """Folders of its instances of which trials may mount parts and use devices; none if empty."""
    log_group: str = ""
    """The CloudWatch group of the agents' logs."""
    log_stream: str = ""
    """The stream in it."""

    @field_validator("spot_max_price")
    @classmethod
    def _check_price(cls, price: str) -> str:
        if price and not _PRICE.match(price):
            refuse(f"must be digits with at most one point, not {value_text(price)}")
        return price

    @model_validator(mode="after")
    def _check_types(self) -> AwsProvider:
        """Every type has slots: its own, or those that somebody wrote down."""
        if not self.offerings and self._slots is None:
            _refuse_type(("instance_type",), self.instance_type, "say its instance_slots")
        sized = (self._sized(place, one) for place, one in enumerate(self.offerings))
        return self.model_copy(update={"offerings": tuple(sized)})

    def slots_offered(self) -> tuple[int, ...]:
        """As for every provider."""
        return super().slots_offered() or (self._slots or 0,)

    @property
    def mounts_allowed(self) -> tuple[str, ...]:
        """As for every provider."""
        return self.allowed_mounts

    @property
    def _slots(self) -> int | None:
        return slots_of(self.instance_type, self.instance_slots, self.cpu_slots_allowed)

    def _sized(self, place: int, offering: OfferingConfig) -> OfferingConfig:
        if "slots" in offering.model_fields_set:
            return offering
        slots = slots_of(offering.instance_type, None, self.cpu_slots_allowed)
        if slots is None:
            loc = ("offerings", place, "instance_type")
            _refuse_type(loc, offering.instance_type, "say its slots")
        return offering.model_copy(update={"slots": slots})


def _refuse_type(loc: Loc, name: str, remedy: str) -> NoReturn:
    hint = nearest(name, GPU_TYPES)
    hint = f"{hint} If not, {remedy}" if hint.startswith("did") else remedy
    refuse_at(loc, f"is no known instance type: {value_text(name)}", hint, name)


class GcpProvider(Provider):
    """Instances are Compute Engine instances."""

    type: Literal["gcp"]
    project: str = ""
    """The server's own if empty."""
    zone: str = ""
    """The server's own if empty."""
    instance_type: FreeMap = Field(default_factory=dict)
    """`machine_type`, `gpu_type`, `gpu_num` and `preemptible`, where there are no offerings."""
    cpu_slots_allowed: bool = False
    """Whether a type without GPUs counts as one slot."""
    base_config: FreeMap = Field(default_factory=dict)
    """Properties of an instance as the cloud's API takes them."""
    boot_disk_size: Annotated[int, Field(ge=100, le=64 * 1024)] = 200
    """GiB."""
    boot_disk_type: Text = "pd-standard"
    """The kind of disk."""
    boot_disk_source_image: str = ""
    """The machine image; the default one if empty."""
    label_key: Text = "managed-by"
    """The label by which the cluster knows its instances."""
    label_value: str = ""
    """The cluster's id if empty."""
    name_prefix: str = ""
    """What the names of instances begin with."""
    network_interface: FreeMap = Field(default_factory=dict)
    """`network`, `subnetwork` and `external_ip`."""
    network_tags: Zones = ()
    """For firewall rules."""
    service_account: FreeMap = Field(default_factory=dict)
    """`email` and `scopes`."""
    operation_timeout_period: PositiveDuration = 5 * 60_000
    """How long an operation of the cloud may take."""
    use_cloud_logging: bool = False
    """Whether the agents' logs go to the cloud."""


PROVIDERS: Final[Mapping[str, type[Provider]]] = MappingProxyType(
    {"local": LocalProvider, "aws": AwsProvider, "gcp": GcpProvider}
)


def _chosen(value: object, info: ValidationInfo) -> Provider:
    return value if isinstance(value, Provider) else choose(value, "type", PROVIDERS, info)


AnyProvider = Annotated[SerializeAsAny[Provider], PlainValidator(_chosen)]
