"""The request of a launch to Compute Engine: one bulk insert, in a region or in one zone of it.

Names of instances are made of the launch's token and of a digest of the request, so that a request
repeated with its token names the same instances, and another request with that token is noticed.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from control_plane.adapters import lazy_adapter
from control_plane.fleet.records import IntentRow, Market, Offering
from control_plane.gcp.machine_types import (
    N1_DEFAULT,
    InstanceType,
    MachineType,
    MachineTypes,
    attachment_problem,
    boot_disk_type,
    can_migrate,
    describe_instance_type,
    gpus_of,
    parse_instance_type,
    slots_of,
)
from control_plane.gcp.zones import region_of
from provisioner.clouds.gcp.labels import to_labels
from provisioner.clouds.provider import CLUSTER_TAG, INTENT_TAG, POOL_TAG, ConfigurationError

# What Compute Engine takes as one value of an instance's metadata.
STARTUP_SCRIPT_BYTES_MAX: Final = 256 * 1024
# Drivers, a container engine and its toolkit for GPUs, kept by Google.
IMAGE_DEFAULT: Final = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-amd64-with-nvidia-580"
)
# Of the limits that Google and others tell of a bulk insert the lowest.
INSTANCES_MAX: Final = 1_000
NETWORK_DEFAULT: Final = "global/networks/default"
SCOPE_DEFAULT: Final = "https://www.googleapis.com/auth/cloud-platform"
NAME_PREFIX_DEFAULT: Final = "detcloud"
# From the notice of a preemption to the end, and the only other time that can be asked for.
NOTICE_SECONDS: Final = 30
EXTENDED_NOTICE_SECONDS: Final = 120

_TOKEN_DIGITS: Final = 12
_REQUEST_DIGITS: Final = 6
_NAME: Final = re.compile(r".*-(?P<token>[0-9a-f]{12})-(?P<request>[0-9a-f]{6})-\d+")


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """The machine of pools without offerings, control_plane.gcp.pool_provider.MachineConfig."""

    machine_type: str = N1_DEFAULT
    gpu_type: str | None = None
    gpu_num: int | None = None
    preemptible: bool = False

    def instance_type(self, described: MachineTypes) -> InstanceType:
        """The machine type with its accelerators."""
        return describe_instance_type(self.machine_type, self.gpu_type, self.gpu_num, described)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The connection of instances, control_plane.gcp.pool_provider.NetworkConfig, parsed."""

    network: str = ""
    subnetwork: str = ""
    external_ip: bool = False


@dataclass(frozen=True, slots=True)
class AccountSettings:
    """The service account of instances, control_plane.gcp.pool_provider.AccountConfig, parsed."""

    email: str = ""
    scopes: tuple[str, ...] = (SCOPE_DEFAULT,)


@dataclass(frozen=True, slots=True)
class GceSettings:
    """The settings of a pool's provider, control_plane.gcp.pool_provider.GcpProvider, parsed."""

    project: str = ""
    region: str = ""
    zone: str = ""
    instance_type: MachineSettings = MachineSettings()
    instance_slots: int | None = None
    cpu_slots_allowed: bool = False
    machine_types: Mapping[str, MachineType] = field(default_factory=dict)
    base_config: Mapping[str, Any] = field(default_factory=dict)
    boot_disk_size: int = 200
    boot_disk_type: str = ""
    boot_disk_source_image: str = ""
    label_key: str = "managed-by"
    label_value: str = ""
    name_prefix: str = ""
    network_interface: NetworkSettings = NetworkSettings()
    network_tags: tuple[str, ...] = ()
    service_account: AccountSettings = AccountSettings()
    extended_preemption_notice: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels of instances; the deployment has them, no pool."""
    kms_key: str = ""
    """The key of disks; the deployment has it, no pool."""

    @property
    def place(self) -> str:
        """The region. Raises ConfigurationError where nothing names one."""
        region = self.region or region_of(self.zone)
        if not region:
            raise ConfigurationError("provider.region: is needed where the server has none")
        return region

    def default_offering(self) -> Offering:
        """The offering of pools that name none. Raises ConfigurationError."""
        described = self.machine_types
        name = str(self.instance_type.instance_type(described))
        slots = slots_of(name, self.instance_slots, self.cpu_slots_allowed, described)
        if slots is None:
            text = f"provider.instance_type.machine_type: {name!r:.80} is not a known type"
            raise ConfigurationError(f"{text}; set its instance_slots")
        market = Market.SPOT if self.instance_type.preemptible else Market.ON_DEMAND
        return Offering(f"{name}/{market}", name, "", market, slots)


_SETTINGS = lazy_adapter(GceSettings)


def parse_section(section: str) -> GceSettings:
    """Parse the settings of a pool's section. Raises ConfigurationError."""
    try:
        return _SETTINGS().validate_json(section or "{}")
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, ("provider", *first["loc"])))
        raise ConfigurationError(f"{place}: {first['msg']}") from None


class BulkRequest(NamedTuple):
    """A bulk insert: the path that it is posted to, its id, and its content."""

    path: str
    request_id: str
    body: Mapping[str, Any]


def bulk_request(request: IntentRow, settings: GceSettings, script: bytes) -> BulkRequest:
    """The bulk insert of one attempt: all or none of a gang, in one zone, and otherwise what there
    is, in any zones, of at most INSTANCES_MAX. Raises ConfigurationError.
    """
    if request.together and request.count > INSTANCES_MAX:
        text = f"Compute Engine launches at most {INSTANCES_MAX} instances together"
        raise ConfigurationError(f"{request.count} instances together: {text}")
    zone = request.offering.zone or request.zone or settings.zone
    if zone and region_of(zone) != settings.place:
        text = f"zone {zone!r:.40} is not in region {settings.place}"
        raise ConfigurationError(f"{text}: name another zone, or provider.region")
    place = f"zones/{zone}" if zone else f"regions/{settings.place}"
    names = instance_names(request, settings)
    body: dict[str, Any] = {
        "count": str(len(names)),
        "minCount": str(len(names) if request.together else 1),
        "perInstanceProperties": {name: {} for name in names},
        "instanceProperties": instance_properties(request, settings, script),
    }
    if not zone:
        shape = "ANY_SINGLE_ZONE" if request.together else "ANY"
        body["locationPolicy"] = {"targetShape": shape}
    path = f"{settings.project}/{place}/instances/bulkInsert"
    return BulkRequest(path, request_id(request.token), body)


def request_id(token: str) -> str:
    """The id by which Compute Engine knows a request again: a UUID, made of a launch's token."""
    return str(uuid.UUID(bytes=hashlib.sha256(token.encode()).digest()[:16], version=4))


def instance_names(request: IntentRow, settings: GceSettings) -> list[str]:
    """The names of a request's instances, which are their ids: as many as one request is for."""
    stem = f"{settings.name_prefix.rstrip('-') or NAME_PREFIX_DEFAULT}-{_token_digest(request)}"
    count = min(request.count, INSTANCES_MAX)
    return [f"{stem}-{_request_digest(request)}-{number}" for number in range(count)]


def is_named_by(name: str, request: IntentRow) -> bool:
    """Whether an instance's name is of exactly this request."""
    found = _NAME.fullmatch(name)
    digests = (_token_digest(request), _request_digest(request))
    return found is not None and (found["token"], found["request"]) == digests


def _token_digest(request: IntentRow) -> str:
    return hashlib.sha256(request.token.encode()).hexdigest()[:_TOKEN_DIGITS]


def _request_digest(request: IntentRow) -> str:
    """A digest of what is asked for; prices change between two tries, and say nothing of it."""
    offering = request.offering
    asked = [
        *(request.id, request.cluster, request.pool, request.count, request.section),
        *(offering.instance_type, offering.zone, offering.market, request.together, request.zone),
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:_REQUEST_DIGITS]


def instance_tags(request: IntentRow) -> dict[str, str]:
    """The tags that say whose an instance is."""
    return {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool, INTENT_TAG: request.id}


def instance_labels(request: IntentRow, settings: GceSettings) -> dict[str, str]:
    """The labels of an instance and its disk; the user's cannot replace ours."""
    more = {**settings.labels, **settings.base_config.get("labels", {})}
    mark = {settings.label_key: settings.label_value}
    if not settings.label_value:
        mark = to_labels({settings.label_key: request.cluster})
    return {**more, **mark, **to_labels(instance_tags(request))}


def instance_properties(request: IntentRow, settings: GceSettings, script: bytes) -> dict[str, Any]:
    """The properties of every instance of a request. Raises ConfigurationError."""
    instance = parse_instance_type(request.offering.instance_type)
    if instance is None:
        text = f"{request.offering.instance_type!r:.80} is not a machine type"
        raise ConfigurationError(f"{text} such as a2-highgpu-1g or n1-standard-8+nvidia-tesla-t4:1")
    if problem := attachment_problem(instance, settings.machine_types):
        raise ConfigurationError(problem)
    base, labels = settings.base_config, instance_labels(request, settings)
    attached = {"acceleratorType": instance.accelerator, "acceleratorCount": instance.number}
    account = settings.service_account
    own: dict[str, Any] = {
        "machineType": instance.machine_type,
        "labels": labels,
        "disks": [
            _boot_disk(instance, settings, labels),
            # A disk that outlived its instance would be paid for, and belong to nobody.
            *({"autoDelete": True, **disk} for disk in base.get("disks", ())),
        ],
        "networkInterfaces": _interfaces(settings),
        "metadata": {"items": _metadata(settings, script)},
        "scheduling": {**base.get("scheduling", {}), **_scheduling(request, instance, settings)},
    }
    if instance.number:
        own["guestAccelerators"] = [attached]
    if account.email:
        own["serviceAccounts"] = [{"email": account.email, "scopes": list(account.scopes)}]
    tags = [*settings.network_tags, *base.get("tags", {}).get("items", ())]
    if tags:
        own["tags"] = {"items": list(dict.fromkeys(tags))}
    return {**base, **own}


def _boot_disk(
    instance: InstanceType, settings: GceSettings, labels: Mapping[str, str]
) -> dict[str, Any]:
    disk: dict[str, Any] = {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": settings.boot_disk_source_image or IMAGE_DEFAULT,
            "diskSizeGb": str(settings.boot_disk_size),
            # A name alone: bulk inserts take no paths of types.
            "diskType": settings.boot_disk_type or boot_disk_type(instance.machine_type),
            "labels": labels,
        },
    }
    return (
        {**disk, "diskEncryptionKey": {"kmsKeyName": settings.kms_key}}
        if settings.kms_key
        else disk
    )


def _interfaces(settings: GceSettings) -> list[dict[str, Any]]:
    given: Sequence[Mapping[str, Any]] = settings.base_config.get("networkInterfaces") or [{}]
    network = settings.network_interface
    first = dict(given[0])
    if network.network or not network.subnetwork:
        first["network"] = _global_path(network.network) or first.get("network") or NETWORK_DEFAULT
    if network.subnetwork:
        first["subnetwork"] = _subnetwork_path(network.subnetwork, settings.place)
    if network.external_ip:
        first["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return [first, *map(dict, given[1:])]


def _global_path(network: str) -> str:
    return network if "/" in network or not network else f"global/networks/{network}"


def _subnetwork_path(name: str, region: str) -> str:
    return name if "/" in name else f"regions/{region}/subnetworks/{name}"


def _metadata(settings: GceSettings, script: bytes) -> list[dict[str, str]]:
    """The metadata. Keys of the project's log in nowhere, unless base_config says so."""
    if len(script) > STARTUP_SCRIPT_BYTES_MAX:
        text = f"the boot script has {len(script)} bytes; Compute Engine takes"
        raise ConfigurationError(
            f"{text} {STARTUP_SCRIPT_BYTES_MAX}: shorten provider.startup_script"
        )
    given = settings.base_config.get("metadata", {}).get("items", ())
    items = {
        "block-project-ssh-keys": "TRUE",
        **{item["key"]: item["value"] for item in given},
        "startup-script": script.decode(),
    }
    return [{"key": key, "value": value} for key, value in items.items()]


def _scheduling(
    request: IntentRow, instance: InstanceType, settings: GceSettings
) -> dict[str, Any]:
    """When an instance ends. None is restarted by the cloud: it is replaced, where it is needed."""
    if request.offering.market is Market.SPOT:
        spot: dict[str, Any] = {
            "provisioningModel": "SPOT",
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
        }
        if settings.extended_preemption_notice:
            spot["preemptionNoticeDuration"] = {"seconds": str(EXTENDED_NOTICE_SECONDS)}
        return spot
    # Machines with GPUs cannot be moved while they run.
    can_move = gpus_of(instance, settings.machine_types) == 0 and can_migrate(instance.machine_type)
    chosen = settings.base_config.get("scheduling", {}).get("onHostMaintenance", "MIGRATE")
    return {
        "provisioningModel": "STANDARD",
        "onHostMaintenance": chosen if can_move else "TERMINATE",
        "automaticRestart": False,
    }
