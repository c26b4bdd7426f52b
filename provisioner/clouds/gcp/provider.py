"""The CloudProvider for Compute Engine. A launch is a bulk insert: one call and its operation.

Compute Engine responds before it creates instances. The operation has the result after ten seconds
to a minute. Until then, a launch raises LaunchUnderWay, and a repeated request reads the same
operation. If Google refuses bulk inserts, a pool launches each instance by an insert of its own.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any

from control_plane.fleet.records import IntentRow, Offering
from control_plane.gcp.accelerator_quotas import quota_advice
from control_plane.gcp.machine_types import devices_of
from control_plane.gcp.zones import region_of
from control_plane.scheduling.agent_needs import AgentDevice
from provisioner.clouds.gcp.bulk_launch import launch_in_bulk
from provisioner.clouds.gcp.errors import is_caller_refused, is_gone
from provisioner.clouds.gcp.google_api import (
    CONNECTIONS_MAX,
    GoogleApi,
    JsonObject,
    create_compute_api,
)
from provisioner.clouds.gcp.labels import from_labels, label_filter, to_labels
from provisioner.clouds.gcp.launch_request import (
    NOTICE_SECONDS,
    GceSettings,
    bulk_request,
    instance_labels,
    parse_section,
)
from provisioner.clouds.gcp.listed_instances import check_reachable, epoch_ms, to_cloud_instance
from provisioner.clouds.gcp.offering_prices import OfferingPrices
from provisioner.clouds.gcp.operations import (
    EndOperation,
    LaunchedInstance,
    last_segment,
    read_ends,
)
from provisioner.clouds.gcp.pending_launch import PendingLaunch
from provisioner.clouds.gcp.price_list import PriceSource, PriceTable
from provisioner.clouds.gcp.single_launch import launch_singly
from provisioner.clouds.provider import (
    CLUSTER_TAG,
    POOL_TAG,
    CloudError,
    CloudInstance,
    ConfigurationError,
    OutcomeUnknown,
    QuotaExceeded,
)
from provisioner.model import MINUTE_MS, InstanceStatus, ProvisionerSettings

PAGE_SIZE = 500
# Compute Engine does not document how long a repeated request id is recognized. For an older
# request, the operations are searched first. Launches are repeated for ten minutes.
REQUEST_KNOWN_MS = MINUTE_MS
BOOT_LOG_BYTES = 64 * 1024
NAMES_IN_FILTER_MAX = 20
PROVIDERS_MAX = 256

_ENDING = frozenset({InstanceStatus.STOPPING, InstanceStatus.STOPPED, InstanceStatus.TERMINATING})
# The fields exclude metadata, which has a boot script of 100 kB for each instance.
_INSTANCE = "id,name,status,zone,labels,creationTimestamp,statusMessage"
_LIST = f"nextPageToken,unreachables,items/*/warning/code,items/*/instances({_INSTANCE})"
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")

TABLE = PriceTable()

SettingsCompletion = Callable[[GceSettings], GceSettings]
"""Returns a pool's settings, completed with values that only the deployment has."""

BootScript = Callable[[IntentRow], bytes]
"""Returns the startup script of a request's instances.

The script must not change while the request may be repeated.
"""


def unchanged_settings(settings: GceSettings) -> GceSettings:
    """Return the settings unchanged: the completion for deployments without own values."""
    return settings


class GceClouds:
    """The Compute Engine providers of a cluster's pools, by the pools' settings.

    `cloud(settings)` returns a provider. Each provider caches prices and the zones of its instances
    for the lifetime of this object.
    """

    def __init__(
        self,
        render_script: BootScript,
        clock: Callable[[], int],
        *,
        complete_settings: SettingsCompletion = unchanged_settings,
        api: Callable[[], GoogleApi] = create_compute_api,
        prices: PriceSource = TABLE,
    ) -> None:
        self._render_script = render_script
        self._clock = clock
        self._complete_settings = complete_settings
        self._prices = prices
        self._api = lru_cache(maxsize=1)(api)
        self.cloud = lru_cache(maxsize=PROVIDERS_MAX)(self._new_cloud)

    def _new_cloud(self, settings: ProvisionerSettings) -> "GceCloud":
        """Return a new provider for a pool's settings, without a check of the settings.

        All providers share one API, which is created by the first call. No request is made.
        """
        return GceCloud(
            settings,
            self._render_script,
            self._clock,
            self._api(),
            self._complete_settings,
            self._prices,
        )


class GceCloud:
    """The Compute Engine instances of a project in a region.

    `clock` returns epoch milliseconds.
    """

    def __init__(
        self,
        settings: ProvisionerSettings,
        render_script: BootScript,
        clock: Callable[[], int],
        api: GoogleApi,
        complete_settings: SettingsCompletion = unchanged_settings,
        prices: PriceSource = TABLE,
    ) -> None:
        self._settings = settings
        self._render_script = render_script
        self._clock = clock
        self._api = api
        self._complete_settings = complete_settings
        self._prices = OfferingPrices(
            self._offerings_of_settings, self._pool_settings, prices, clock
        )
        self._zones: dict[str, set[str]] = {}
        self._listed: dict[tuple[str, str | None], dict[str, CloudInstance]] = {}

    def offerings(self) -> tuple[Offering, ...]:
        """Return the settings' offerings with prices, cached for an hour.

        An unknown price is 0. A failed request for prices is logged, and built-in prices are used.
        If the settings list no offerings, return one offering of the settings' machine type.

        Raises:
            ConfigurationError: the pool's section is invalid, no project or region is known, or the
                settings list no offerings and the slots of the machine type are unknown.
        """
        return self._prices.offerings()

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the devices that the agent of an instance type reports. () for an unknown type."""
        return devices_of(instance_type)

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch instances by a bulk insert, or read the result of an earlier request.

        A request with `singly` is launched by an insert for each instance (`launch_singly`).

        The first call begins the launch and usually raises LaunchUnderWay; a later call with the
        same request returns the launched instances, as STARTING, also after an instance has ended.
        Fewer instances than requested may be launched, unless the request is `together`. If the
        request was created REQUEST_KNOWN_MS ago or earlier, its operation is searched first, and a
        launch begins only if no operation is found. A quota error names the quota to raise. The
        zones of the launched instances are cached for `terminate`.

        Raises:
            LaunchUnderWay: the operation is not over.
            OutcomeUnknown: Compute Engine did not answer, the operation cannot be read, or
                instances with the names exist already.
            TokenReused: the token belongs to a different request.
            BatchRefused: Google lets the caller create no instances by a bulk insert.
            CloudError: this call launched nothing. An earlier request may have launched instances:
                for example, the search for its operation fails with this error.
        """
        settings = self._complete_section(request.section)
        script = self._render_script(request)
        is_old = self._clock() - request.created_ms >= REQUEST_KNOWN_MS
        pending = PendingLaunch(self._api, request, settings, script, is_old)
        try:
            if request.singly:
                launched = launch_singly(pending)
            else:
                launched = launch_in_bulk(pending, bulk_request(request, settings, script))
        except QuotaExceeded as error:
            raise _with_quota_advice(error, request, settings) from None
        self._note_zones((item.name, item.zone) for item in launched)
        return _launched_instances(launched, request, settings, self._clock())

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List the region's instances of a cluster, or of a single pool, by labels.

        - A listed instance that stops, has stopped or ends gets the reason for the end, and the
          end of a preemption as notice. Both are None if no operation tells the reason.
        - An instance may have disappeared from Compute Engine's list since the last call of this
          object with the same arguments. If an operation tells the reason for its end, the instance
          is returned once as TERMINATED. Otherwise the instance is absent.

        Operations are read only for such instances. After an error of this read, the next call does
        not return a disappeared instance again. The zones are cached for `terminate`.

        Raises:
            OutcomeUnknown: Compute Engine does not reach a zone of the region or does not answer.
            CloudError: the list or the operations cannot be read.
        """
        settings = self._pool_settings()
        tags = {CLUSTER_TAG: cluster} | ({} if pool is None else {POOL_TAG: pool})
        wanted = label_filter(to_labels(tags))
        described = self._read_instances(settings, wanted, check_reachable)
        in_region = [
            item for item in described if region_of(last_segment(item["zone"])) == settings.place
        ]
        # The label filter also matches longer tags that begin with the wanted text.
        instances = [
            instance
            for instance in map(to_cloud_instance, in_region)
            if tags.items() <= instance.tags.items()
        ]
        self._note_zones((instance.id, instance.zone) for instance in instances)
        listed = {instance.id: instance for instance in instances}
        # An instance that is no longer listed may have been taken back by the cloud.
        former = self._listed.get((cluster, pool), {})
        self._listed[cluster, pool] = listed
        gone = [instance for name, instance in former.items() if name not in listed]
        asked = [instance.id for instance in instances if instance.status in _ENDING]
        asked += [instance.id for instance in gone]
        ends = read_ends(self._api, settings.project, asked) if asked else {}
        return [
            *(_with_end(instance, ends.get(instance.id)) for instance in instances),
            *(_with_end(_mark_terminated(item), ends[item.id]) for item in gone if item.id in ends),
        ]

    def terminate(self, ids: Sequence[str]) -> None:
        """Delete instances, in batches of CONNECTIONS_MAX; do not wait for the ends.

        A name is deleted in each zone where this object has found the name. Otherwise an instance
        of the same name in another zone could hide the cluster's instance, which costs money.

        Ignore invalid and unknown ids, gone instances, and instances that Compute Engine is
        creating; the caller repeats the call while an instance is listed. The zone of an instance
        that this object has not listed is read first.

        An error of one instance does not stop the others, and the last error is raised at the end.
        After a batch without any response, no further batch is sent. If Compute Engine refuses the
        caller (throttled or not allowed), the refusal is raised after the batch.

        Raises:
            ConfigurationError: the pool's section is invalid, or no project is known.
            CloudError: a zone cannot be read, and nothing was deleted; or a deletion failed.
        """
        settings = self._pool_settings()
        paths = self._find_paths(settings, dict.fromkeys(ids))
        last: CloudError | None = None
        with ThreadPoolExecutor(CONNECTIONS_MAX) as executor:
            for first in range(0, len(paths), CONNECTIONS_MAX):
                batch = paths[first : first + CONNECTIONS_MAX]
                found = executor.map(self._deletion_error, batch)
                errors = [error for error in found if error is not None]
                last = errors[-1] if errors else last
                refusal = next(filter(is_caller_refused, errors), None)
                if refusal is not None:
                    raise refusal
                # Each batch waits for a timeout, so further batches would hold up the pass.
                unanswered = sum(isinstance(error, OutcomeUnknown) for error in errors)
                if unanswered == len(batch):
                    break
        if last is not None:
            raise last

    def _deletion_error(self, path: str) -> CloudError | None:
        """Delete the instance at a path; return the error of a failed request.

        Return None after success, and also if the instance does not exist, or is being created or
        deleted.
        """
        try:
            self._api.delete(path)
        except CloudError as error:
            return None if is_gone(error) else error
        return None

    def boot_log(self, instance: str) -> str:
        """Return the last BOOT_LOG_BYTES of the serial port's output.

        Return "" for an unknown or invalid id, for an instance that is gone or being created, and
        without output. The zone of an instance that this object has not listed is read first.
        Raises CloudError for any other failed request, and ConfigurationError for an invalid
        section or without a project.
        """
        settings = self._pool_settings()
        for path in self._find_paths(settings, [instance]):
            try:
                answer = self._api.get(f"{path}/serialPort", start=-BOOT_LOG_BYTES)
                return str(answer.get("contents") or "")
            except CloudError as error:
                if not is_gone(error):
                    raise
        return ""

    def _read_instances(
        self,
        settings: GceSettings,
        wanted: str,
        check: Callable[[JsonObject, str], None] = lambda page, region: None,
    ) -> list[Any]:
        """Return the instances of all zones that match a filter, as JSON objects.

        Args:
            settings: the pool's settings, with project and region.
            wanted: the filter.
            check: called with each page and the pool's region; may raise CloudError.

        Raises:
            CloudError: a page cannot be read, or `check` raised.
        """
        pages = self._api.read_pages(
            f"{settings.project}/aggregated/instances",
            filter=wanted,
            maxResults=PAGE_SIZE,
            fields=_LIST,
        )
        instances: list[Any] = []
        for page in pages:
            check(page, settings.place)
            for scope in page.get("items", {}).values():
                instances.extend(scope.get("instances", ()))
        return instances

    def _note_zones(self, found: Iterable[tuple[str, str]]) -> None:
        """Add zones, as pairs of an instance's name and a zone, to the cached zones."""
        for name, zone in found:
            self._zones.setdefault(name, set()).add(zone)

    def _find_paths(self, settings: GceSettings, names: Iterable[str]) -> list[str]:
        """Return the path of each instance with a name in `names`, in cached zones or read by name.

        Cached zones may be of instances that have ended. Invalid names, and names that Compute
        Engine does not list, are left out. Zones are cached for the lifetime of this object, and
        only uncached names cause requests. Raises CloudError if instances cannot be read.
        """
        valid = [name for name in names if _NAME.fullmatch(name)]
        unknown = [name for name in valid if name not in self._zones]
        for first in range(0, len(unknown), NAMES_IN_FILTER_MAX):
            batch = unknown[first : first + NAMES_IN_FILTER_MAX]
            wanted = " OR ".join(f'(name = "{name}")' for name in batch)
            described = self._read_instances(settings, wanted)
            self._note_zones((item["name"], last_segment(item["zone"])) for item in described)
        return [
            f"{settings.project}/zones/{zone}/instances/{name}"
            for name in valid
            for zone in sorted(self._zones.get(name, ()))
        ]

    def _complete_section(self, section: str) -> GceSettings:
        """Return a pool's settings, parsed from JSON and completed by the deployment.

        Raises ConfigurationError for invalid settings or without a project. Errors of the
        deployment's completion are passed on.
        """
        settings = self._complete_settings(parse_section(section))
        if not settings.project:
            text = "provider.project: is needed, because the server has no project"
            raise ConfigurationError(text)
        return settings

    def _pool_settings(self) -> GceSettings:
        """Return the pool's Compute Engine settings, completed by `complete_settings`.

        The deployment's values fill those that the pool lacks, such as project and region. The
        section is parsed at each call. Raises ConfigurationError for invalid settings or
        without a project.
        """
        return self._complete_section(self._settings.section)

    def _offerings_of_settings(self) -> tuple[Offering, ...]:
        """Return the settings' offerings, or else an offering of the settings' machine type.

        No prices are added, and Compute Engine is not asked. Without offerings, raises
        ConfigurationError for an invalid section, without a project, or if the number of slots of
        the machine type is unknown.
        """
        return self._settings.offerings or (self._pool_settings().default_offering(),)


def _launched_instances(
    launched: Iterable[LaunchedInstance],
    request: IntentRow,
    settings: GceSettings,
    now_ms: int,
) -> tuple[CloudInstance, ...]:
    """Return launched instances as STARTING, launched now, sorted by name.

    The tags are those of the request. Google is not called.
    """
    tags = from_labels(instance_labels(request, settings))
    return tuple(
        CloudInstance(name, InstanceStatus.STARTING, now_ms, tags, zone=zone, uid=uid)
        for name, zone, uid in sorted(launched)
    )


def _with_quota_advice(
    error: QuotaExceeded, request: IntentRow, settings: GceSettings
) -> QuotaExceeded:
    """Return a new error with advice on the quota of the request's type and market to raise."""
    advice = quota_advice(
        request.offering.instance_type,
        request.offering.market,
        settings.project,
        settings.place,
        settings.machine_types,
    )
    return QuotaExceeded(f"{error}; {advice}")


def _with_end(instance: CloudInstance, operation: EndOperation | None) -> CloudInstance:
    """Return the instance with the reason and the notice of the operation that ends the instance.

    The notice is the end of the notice period of a preemption, and None for any other operation.
    Without an operation, return the instance unchanged.
    """
    if operation is None:
        return instance
    notice_ms = None
    if operation.is_preemption:
        notice_ms = epoch_ms(operation.time) + NOTICE_SECONDS * 1000
    return replace(instance, end=operation.end, notice_ms=notice_ms)


def _mark_terminated(instance: CloudInstance) -> CloudInstance:
    """Return the instance with the status TERMINATED."""
    return replace(instance, status=InstanceStatus.TERMINATED)
