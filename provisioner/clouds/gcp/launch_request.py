"""The parameters of Compute Engine launches: a bulk insert in a region or zone. No API calls.

The name of an instance includes a digest of the launch's token and a digest of the request. A
repeated request therefore names the same instances, and a different request with the same token is
detected.
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
from control_plane.gcp.default_image import find_image_problem
from control_plane.gcp.machine_types import (
    N1_ACCELERATORS,
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

# Compute Engine's limit on a value of an instance's metadata.
STARTUP_SCRIPT_BYTES_MAX: Final = 256 * 1024
# Google maintains this image with NVIDIA's driver, whose open kernel modules need Turing or newer.
# The boot script installs the container engine and NVIDIA's container toolkit.
IMAGE_DEFAULT: Final = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-amd64-with-nvidia-580"
)
# The lowest of the limits on a bulk insert that Google and other sources document.
INSTANCES_MAX: Final = 1_000
NETWORK_DEFAULT: Final = "global/networks/default"
SCOPE_DEFAULT: Final = "https://www.googleapis.com/auth/cloud-platform"
NAME_PREFIX_DEFAULT: Final = "detcloud"
# The time from a preemption notice to the end. An extended notice comes this much earlier.
NOTICE_SECONDS: Final = 30
EXTENDED_NOTICE_SECONDS: Final = 120

_TOKEN_DIGITS: Final = 12
_REQUEST_DIGITS: Final = 6
_NAME: Final = re.compile(r".*-(?P<token>[0-9a-f]{12})-(?P<request>[0-9a-f]{6})-\d+")


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """The machine type of pools without offerings, documented in pool_provider.MachineConfig."""

    machine_type: str = N1_DEFAULT
    gpu_type: str | None = None
    gpu_num: int | None = None
    preemptible: bool = False

    def instance_type(self, described: MachineTypes) -> InstanceType:
        """Return the machine type with the accelerators.

        `gpu_type` and `gpu_num` that are None have the defaults of `describe_instance_type`: an N1
        type without both gets 4 GPUs of the kind nvidia-tesla-t4, as version 0.1 stored them. The
        result is not checked. `described` has machine types that take precedence over the
        catalogue.
        """
        return describe_instance_type(self.machine_type, self.gpu_type, self.gpu_num, described)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The network settings of instances, documented in pool_provider.NetworkConfig."""

    network: str = ""
    subnetwork: str = ""
    external_ip: bool = False


@dataclass(frozen=True, slots=True)
class AccountSettings:
    """The service account of instances, documented in pool_provider.AccountConfig."""

    email: str = ""
    scopes: tuple[str, ...] = (SCOPE_DEFAULT,)


@dataclass(frozen=True, slots=True)
class GceSettings:
    """A pool's Compute Engine settings.

    control_plane.gcp.pool_provider.GcpProvider documents the fields without a text here.
    """

    project: str = ""
    region: str = ""
    zone: str = ""
    instance_type: MachineSettings = MachineSettings(gpu_num=N1_ACCELERATORS)
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
    """Additional labels of instances; only the deployment sets them."""
    kms_key: str = ""
    """The KMS key that encrypts disks; only the deployment sets it."""

    @property
    def place(self) -> str:
        """Return the region, or else the zone's region.

        Raises ConfigurationError without either.
        """
        region = self.region or region_of(self.zone)
        if not region:
            raise ConfigurationError("provider.region: is needed, because the server has no region")
        return region

    def default_offering(self) -> Offering:
        """Return the offering of `instance_type`, for pools without a list of offerings.

        The name is `TYPE/MARKET`. The offering has any zone and no price. The slots are
        `instance_slots`, or else the GPUs of the machine type. With `cpu_slots_allowed`, 1 slot
        replaces 0 slots. Raises ConfigurationError if the number of slots is unknown.
        """
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
    """Parse a pool's Compute Engine settings from JSON; "" gives the defaults.

    Unknown fields are ignored. The deployment's values are not added. Raises ConfigurationError for
    invalid JSON or a wrong value, naming the first field.
    """
    try:
        return _SETTINGS().validate_json(section or "{}")
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, ("provider", *first["loc"])))
        raise ConfigurationError(f"{place}: {first['msg']}") from None


class BulkRequest(NamedTuple):
    """The parameters of a bulk insert."""

    path: str
    """The path of the call, below the API's root."""
    request_id: str
    """The id by which Compute Engine recognizes a repeated request."""
    body: Mapping[str, Any]
    """The JSON body of the call."""


def bulk_request(request: IntentRow, settings: GceSettings, script: bytes) -> BulkRequest:
    """Return the bulk insert for a launch attempt; call nothing.

    A `together` request is launched in one zone, completely or not at all. Other requests get as
    many instances as available, at least 1 and at most INSTANCES_MAX, in any zones. The first zone
    that the offering, the request or the settings name limits the launch to that zone. A repeated
    request gives the same parameters, if settings and script are the same.

    Args:
        request: the launch attempt.
        settings: the pool's settings.
        script: the startup script.

    Raises:
        ConfigurationError: a `together` request or the script is too large, the zone is not in the
            region, no region is known, or the machine type or accelerator is invalid or cannot boot
            the default image.
    """
    if request.together and request.count > INSTANCES_MAX:
        text = f"Compute Engine launches at most {INSTANCES_MAX} instances together"
        raise ConfigurationError(f"{request.count} instances together: {text}")
    zone = launch_zone(request, settings)
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


def launch_zone(request: IntentRow, settings: GceSettings) -> str:
    """Return the only zone of a launch: that of the offering, the request or the settings.

    "" if none names a zone. Raises ConfigurationError for a zone outside the region.
    """
    zone = request.offering.zone or request.zone or settings.zone
    if zone and region_of(zone) != settings.place:
        text = f"zone {zone!r:.40} is not in region {settings.place}"
        raise ConfigurationError(f"{text}: name another zone, or provider.region")
    return zone


def request_id(token: str) -> str:
    """Return the UUID, derived from a launch's token, by which Compute Engine detects repeats."""
    return str(uuid.UUID(bytes=hashlib.sha256(token.encode()).digest()[:16], version=4))


def instance_names(request: IntentRow, settings: GceSettings) -> list[str]:
    """Return the names of a request's instances. Names are also ids.

    A request for more than INSTANCES_MAX instances gets only INSTANCES_MAX names. The names depend
    on the settings' prefix, and on digests of the token and of the request without the price. A
    repeated request therefore has the same names.
    """
    stem = f"{settings.name_prefix.rstrip('-') or NAME_PREFIX_DEFAULT}-{_token_digest(request)}"
    count = min(request.count, INSTANCES_MAX)
    return [f"{stem}-{_request_digest(request)}-{number}" for number in range(count)]


def is_named_by(name: str, request: IntentRow) -> bool:
    """Whether an instance's name contains the digests of the request's token and of the request.

    False also for a name of another form.
    """
    match = _NAME.fullmatch(name)
    digests = (_token_digest(request), _request_digest(request))
    return match is not None and (match["token"], match["request"]) == digests


def _token_digest(request: IntentRow) -> str:
    """Return _TOKEN_DIGITS hexadecimal digits of a digest of the launch's token."""
    return hashlib.sha256(request.token.encode()).hexdigest()[:_TOKEN_DIGITS]


def _request_digest(request: IntentRow) -> str:
    """Return a digest of the request without the price, which may change between attempts.

    The offering's name and slots, and the time of the request, do not matter either.
    """
    offering = request.offering
    parts = [
        *(request.id, request.cluster, request.pool, request.count, request.section),
        *(offering.instance_type, offering.zone, offering.market, request.together, request.zone),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_REQUEST_DIGITS]


def instance_tags(request: IntentRow) -> dict[str, str]:
    """Return the tags that identify the cluster, the pool and the launch of an instance."""
    return {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool, INTENT_TAG: request.id}


def instance_labels(request: IntentRow, settings: GceSettings) -> dict[str, str]:
    """Return the labels of an instance and of the disk, merged by key.

    Of several labels with a key, the first in this order counts:

    1. The labels of the cluster, the pool and the launch, encoded by `to_labels`.
    2. The owner's label, `label_key` and `label_value` of the settings. Without a value, the value
       is the cluster, encoded by `to_labels`.
    3. The labels of `base_config`.
    4. The labels of the deployment.
    """
    more = {**settings.labels, **settings.base_config.get("labels", {})}
    mark = {settings.label_key: settings.label_value}
    if not settings.label_value:
        mark = to_labels({settings.label_key: request.cluster})
    return {**more, **mark, **to_labels(instance_tags(request))}


def instance_properties(request: IntentRow, settings: GceSettings, script: bytes) -> dict[str, Any]:
    """Return the `instanceProperties` of a bulk insert: machine, disks, network, metadata, labels.

    The fields of `base_config` and of the pool's settings are merged:

    - `machineType`, `guestAccelerators` and `serviceAccounts`: the request's and the settings' own,
      or those of `base_config` without accelerators or account.
    - `labels`: key by key (`instance_labels`).
    - `disks`: the settings' boot disk, then the disks of `base_config`. A disk is deleted with the
      instance, unless it is of `base_config` and says otherwise.
    - `networkInterfaces`: those of `base_config`; the settings replace fields of the first.
    - `metadata`: key by key. `base_config` cannot replace the startup script, but can allow the
      project's SSH keys, which are blocked otherwise.
    - `scheduling`: key by key. The request's market and maintenance options take precedence.
      However, `base_config` chooses `onHostMaintenance` of an on-demand machine that can migrate.
    - `tags`: the network tags of the settings, then those of `base_config`, without duplicates.
    - Any other field of `base_config` is kept unchecked.

    Raises:
        ConfigurationError: the machine type or accelerator is invalid or cannot boot the default
            image, the script is too long, or a subnetwork is given and no region is known.
    """
    instance = parse_instance_type(request.offering.instance_type)
    if instance is None:
        text = f"{request.offering.instance_type!r:.80} is not a machine type"
        raise ConfigurationError(f"{text} such as a2-highgpu-1g or n1-standard-8+nvidia-tesla-t4:1")
    if problem := attachment_problem(instance, settings.machine_types):
        raise ConfigurationError(problem)
    if not settings.boot_disk_source_image:
        _check_default_image(str(instance), settings)
    base, labels = settings.base_config, instance_labels(request, settings)
    attached = {"acceleratorType": instance.accelerator, "acceleratorCount": instance.number}
    account = settings.service_account
    own: dict[str, Any] = {
        "machineType": instance.machine_type,
        "labels": labels,
        "disks": [
            _boot_disk(instance, settings, labels),
            # A disk that outlived the instance would cost money for ever.
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


def _check_default_image(name: str, settings: GceSettings) -> None:
    """Raise ConfigurationError if the default image does not run on an instance type.

    Unknown types pass. The check does not depend on the image in `settings`: the caller skips the
    check for pools with an own image. `settings` have the descriptions of machine types.
    """
    if problem := find_image_problem(name, settings.machine_types):
        raise ConfigurationError(f"{name} cannot boot: {problem.text}; {problem.remedy}")


def _boot_disk(
    instance: InstanceType, settings: GceSettings, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the boot disk of an instance, which is deleted with the instance.

    Without an image in the settings, the image is IMAGE_DEFAULT. Without a disk type, the type
    depends on the machine type. The deployment's KMS key encrypts the disk, if set.
    """
    disk: dict[str, Any] = {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": settings.boot_disk_source_image or IMAGE_DEFAULT,
            "diskSizeGb": str(settings.boot_disk_size),
            # Bulk inserts accept only the name of a disk type, not a path.
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
    """Return the network interfaces of `base_config`, the first adapted to the pool's settings.

    Without interfaces in `base_config`, the first interface is empty at first. Its fields:

    - `network`: the settings' network, or else the interface's own, or else NETWORK_DEFAULT. If
      only a subnetwork is known, the field stays as it is, because the subnetwork decides.
    - `subnetwork`: the settings' subnetwork, if set.
    - `accessConfigs`: an external address, if the settings want one. Otherwise the interface's own
      `accessConfigs` stay, so that `base_config` may add an address.
    - Other fields stay.

    Further interfaces stay. Raises ConfigurationError if the settings name a subnetwork and no
    region is known.
    """
    base: Sequence[Mapping[str, Any]] = settings.base_config.get("networkInterfaces") or [{}]
    network = settings.network_interface
    first = dict(base[0])
    # A subnetwork determines the network, so that no default is needed.
    if network.network or not (network.subnetwork or first.get("subnetwork")):
        first["network"] = _global_path(network.network) or first.get("network") or NETWORK_DEFAULT
    if network.subnetwork:
        first["subnetwork"] = _subnetwork_path(network.subnetwork, settings.place)
    if network.external_ip:
        first["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return [first, *map(dict, base[1:])]


def _global_path(network: str) -> str:
    """Return the path of a network that is given by name or path; "" remains ""."""
    return network if "/" in network or not network else f"global/networks/{network}"


def _subnetwork_path(name: str, region: str) -> str:
    """Return the path of a subnetwork that is given by name or path; a path is unchanged."""
    return name if "/" in name else f"regions/{region}/subnetworks/{name}"


def _metadata(settings: GceSettings, script: bytes) -> list[dict[str, str]]:
    """Return the metadata items of `base_config` with the startup script, which cannot be replaced.

    The project's SSH keys are blocked unless `base_config` allows them. Of several items with a
    key, the last counts. Raises ConfigurationError for a script longer than
    STARTUP_SCRIPT_BYTES_MAX.
    """
    if len(script) > STARTUP_SCRIPT_BYTES_MAX:
        text = f"the boot script has {len(script)} bytes; Compute Engine takes"
        raise ConfigurationError(
            f"{text} {STARTUP_SCRIPT_BYTES_MAX}: shorten provider.startup_script"
        )
    base = settings.base_config.get("metadata", {}).get("items", ())
    items = {
        "block-project-ssh-keys": "TRUE",
        **{item["key"]: item["value"] for item in base},
        "startup-script": script.decode(),
    }
    return [{"key": key, "value": value} for key, value in items.items()]


def _scheduling(
    request: IntentRow, instance: InstanceType, settings: GceSettings
) -> dict[str, Any]:
    """Return the scheduling options of an instance for the request's market.

    Of the options in `base_config`, only `onHostMaintenance` counts here (`_maintenance`). Compute
    Engine restarts no instance after an end; the provisioner launches replacements.
    """
    if request.offering.market is Market.SPOT:
        return _spot_scheduling(settings)
    return {
        "provisioningModel": "STANDARD",
        "onHostMaintenance": _maintenance(instance, settings),
        "automaticRestart": False,
    }


def _spot_scheduling(settings: GceSettings) -> dict[str, Any]:
    """Return the scheduling options of a spot instance, which is deleted when preempted.

    With `extended_preemption_notice` in the settings, the notice comes EXTENDED_NOTICE_SECONDS
    before the end.
    """
    spot: dict[str, Any] = {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    }
    if settings.extended_preemption_notice:
        spot["preemptionNoticeDuration"] = {"seconds": str(EXTENDED_NOTICE_SECONDS)}
    return spot


def _maintenance(instance: InstanceType, settings: GceSettings) -> str:
    """Return the option `onHostMaintenance` of an on-demand instance, MIGRATE or TERMINATE.

    TERMINATE for a machine that cannot migrate, for example with GPUs. Otherwise the value in
    `base_config`, which is not checked, or MIGRATE.
    """
    # Compute Engine cannot migrate a running machine that has GPUs.
    can_move = gpus_of(instance, settings.machine_types) == 0 and can_migrate(instance.machine_type)
    if not can_move:
        return "TERMINATE"
    chosen: str = settings.base_config.get("scheduling", {}).get("onHostMaintenance", "MIGRATE")
    return chosen
