"""Instances of Compute Engine, launched by bulk inserts: one call, and an operation to look at.

The call is answered before anything is made. What came of it the operation says when it is over,
in ten seconds or a minute; until then a launch raises LaunchUnderWay, and the same request looks at
the same operation.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from control_plane.fleet.records import IntentRow, Offering
from control_plane.gcp.accelerator_quotas import quota_advice
from control_plane.gcp.zones import region_of
from provisioner.clouds.gcp.errors import is_caller_refused
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
    is_named_by,
    parse_section,
)
from provisioner.clouds.gcp.offering_prices import OfferingPrices
from provisioner.clouds.gcp.operations import (
    BulkResult,
    find_bulk_insert,
    last_segment,
    read_bulk_result,
    read_ends,
)
from provisioner.clouds.gcp.price_list import PriceSource, PriceTable
from provisioner.clouds.provider import (
    CLUSTER_TAG,
    POOL_TAG,
    CloudError,
    CloudInstance,
    ConfigurationError,
    LaunchUnderWay,
    OutcomeUnknown,
    QuotaExceeded,
    TokenReused,
)
from provisioner.model import MINUTE_MS, InstanceStatus, ProvisionerSettings

PAGE_SIZE = 500
# Compute Engine does not say for how long it knows a request again by its id: one that is older is
# looked for among the operations first. Launches are repeated for ten minutes.
REQUEST_KNOWN_MS = MINUTE_MS
BOOT_LOG_BYTES = 64 * 1024
NAMES_IN_FILTER_MAX = 20
PROVIDERS_MAX = 256

# A terminated instance is a stopped one there, whose disk is paid for; a deleted one is not listed.
_STATUS = {
    "PENDING": InstanceStatus.STARTING,
    "PROVISIONING": InstanceStatus.STARTING,
    "STAGING": InstanceStatus.STARTING,
    "RUNNING": InstanceStatus.RUNNING,
    "PENDING_STOP": InstanceStatus.STOPPING,
    "STOPPING": InstanceStatus.STOPPING,
    "SUSPENDING": InstanceStatus.STOPPING,
    "STOPPED": InstanceStatus.STOPPED,
    "SUSPENDED": InstanceStatus.STOPPED,
    "TERMINATED": InstanceStatus.STOPPED,
    "DEPROVISIONING": InstanceStatus.TERMINATING,
}
_ENDING = frozenset({InstanceStatus.STOPPING, InstanceStatus.STOPPED, InstanceStatus.TERMINATING})
# Metadata is left out: it has a boot script of a hundred kilobytes for each instance.
_INSTANCE = "name,status,zone,labels,creationTimestamp,statusMessage"
_LIST = f"nextPageToken,unreachables,items/*/warning/code,items/*/instances({_INSTANCE})"
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_THERE_ALREADY = ("alreadyExists", "RESOURCE_ALREADY_EXISTS")
_GONE = ("notFound", "resourceNotFound", "resourceNotReady")

TABLE = PriceTable()

SettingsCompletion = Callable[[GceSettings], GceSettings]
"""Adds to a pool's settings what the deployment knows and pools do not."""

BootScript = Callable[[IntentRow], bytes]
"""The startup script of a request's instances. The same request has the same one for as long as it
may be repeated.
"""


def unchanged_settings(settings: GceSettings) -> GceSettings:
    """The settings themselves: the completion of those that need none."""
    return settings


class GceClouds:
    """The Compute Engine clouds of pools, by their settings: the zones of instances and prices are
    cached for as long as this object lives.
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
        return GceCloud(
            settings,
            self._render_script,
            self._clock,
            self._api(),
            self._complete_settings,
            self._prices,
        )


class GceCloud:
    """The instances of one project in one region. `clock` gives epoch ms."""

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
        self._zones: dict[str, str] = {}
        self._listed: dict[tuple[str, str | None], dict[str, CloudInstance]] = {}

    def offerings(self) -> tuple[Offering, ...]:
        """The settings' offerings, or the one that their type describes, with prices."""
        return self._prices.offerings()

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch instances, or look at what became of them: LaunchUnderWay until that is known."""
        settings = self._complete_section(request.section)
        bulk = bulk_request(request, settings, self._render_script(request))
        operation = None
        if self._clock() - request.created_ms >= REQUEST_KNOWN_MS:
            operation = find_bulk_insert(self._api, settings.project, bulk.request_id)
        try:
            if operation is None:
                operation = _check_operation(
                    self._api.post(bulk.path, bulk.body, requestId=bulk.request_id)
                )
            result = self._read_result(settings, operation)
            _check_request(result, request)
            if result.is_over and not result.launched:
                raise result.error
        except QuotaExceeded as error:
            offering = request.offering
            advice = quota_advice(
                offering.instance_type,
                offering.market,
                settings.project,
                settings.place,
                settings.machine_types,
            )
            raise QuotaExceeded(f"{error}; {advice}") from None
        except ConfigurationError as error:
            if not _is_there_already(error):
                raise
            # The names are this request's alone: an earlier try, which is forgotten, made them.
            raise OutcomeUnknown(str(error)) from None
        if not result.is_over:
            count = f"{request.count} of {request.offering.instance_type}"
            raise LaunchUnderWay(f"operation {operation['name']} makes {count}")
        self._zones |= dict(result.launched)
        tags, now_ms = from_labels(instance_labels(request, settings)), self._clock()
        return tuple(
            CloudInstance(name, InstanceStatus.STARTING, now_ms, tags, zone=zone)
            for name, zone in sorted(result.launched)
        )

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List instances by their labels; those that end, with the reason that operations tell."""
        settings = self._pool_settings()
        tags = {CLUSTER_TAG: cluster} | ({} if pool is None else {POOL_TAG: pool})
        wanted = label_filter(to_labels(tags))
        described = self._read_instances(settings, wanted, _check_reachable)
        here = [
            item for item in described if region_of(last_segment(item["zone"])) == settings.place
        ]
        # A filter by labels also finds tags that only begin so.
        instances = [
            instance
            for instance in map(_to_cloud_instance, here)
            if tags.items() <= instance.tags.items()
        ]
        self._zones |= {instance.id: instance.zone for instance in instances}
        listed = {instance.id: instance for instance in instances}
        # What was listed before and is no more may have been taken back since.
        former = self._listed.get((cluster, pool), {})
        self._listed[cluster, pool] = listed
        gone = {name: instance for name, instance in former.items() if name not in listed}
        return self._with_ends(settings, instances, gone)

    def terminate(self, ids: Sequence[str]) -> None:
        """Delete instances, each by a call of its own, some at once. The last refusal is raised
        when all were asked for; at once where it is of the caller, or where nobody answers.
        """
        settings = self._pool_settings()
        zones = self._find_zones(settings, dict.fromkeys(ids))
        last: CloudError | None = None

        def delete(name: str) -> CloudError | None:
            try:
                self._api.delete(f"{settings.project}/zones/{zones[name]}/instances/{name}")
            except CloudError as error:
                return None if _is_gone(error) else error
            return None

        with ThreadPoolExecutor(CONNECTIONS_MAX) as executor:
            names = list(zones)
            for first in range(0, len(names), CONNECTIONS_MAX):
                some = names[first : first + CONNECTIONS_MAX]
                errors = [
                    cloud_error
                    for cloud_error in executor.map(delete, some)
                    if cloud_error is not None
                ]
                last = errors[-1] if errors else last
                refusal = next(filter(is_caller_refused, errors), None)
                if refusal is not None:
                    raise refusal
                # Each waits for its answer: a pass would last for as long as there are instances.
                silent = sum(isinstance(cloud_error, OutcomeUnknown) for cloud_error in errors)
                if silent == len(some):
                    break
        if last is not None:
            raise last

    def boot_log(self, instance: str) -> str:
        """Return the end of what the serial port was written, which goes with the instance."""
        settings = self._pool_settings()
        for name, zone in self._find_zones(settings, [instance]).items():
            path = f"{settings.project}/zones/{zone}/instances/{name}/serialPort"
            try:
                return str(self._api.get(path, start=-BOOT_LOG_BYTES).get("contents") or "")
            except CloudError as error:
                if not _is_gone(error):
                    raise
        return ""

    def _read_result(self, settings: GceSettings, operation: JsonObject) -> BulkResult:
        """Read what became of a launch, which has been asked for, whatever is refused now."""
        try:
            return read_bulk_result(self._api, settings.project, operation)
        except CloudError as error:
            raise OutcomeUnknown(f"operation {operation['name']} cannot be read: {error}") from None

    def _read_instances(
        self,
        settings: GceSettings,
        wanted: str,
        check: Callable[[JsonObject, str], None] = lambda page, region: None,
    ) -> list[Any]:
        """Read instances by a filter; `check` looks at each page, and gets the region with it."""
        pages = self._api.read_pages(
            f"{settings.project}/aggregated/instances",
            filter=wanted,
            maxResults=PAGE_SIZE,
            fields=_LIST,
        )
        found: list[Any] = []
        for page in pages:
            check(page, settings.place)
            for scope in page.get("items", {}).values():
                found.extend(scope.get("instances", ()))
        return found

    def _with_ends(
        self,
        settings: GceSettings,
        instances: Sequence[CloudInstance],
        gone: Mapping[str, CloudInstance],
    ) -> list[CloudInstance]:
        """The instances, those that end with why, and those that have gone for a reason that is
        told; what is taken back has its last moment as a notice.
        """
        asked = [
            cloud_instance.id for cloud_instance in instances if cloud_instance.status in _ENDING
        ] + list(gone)
        ends = read_ends(self._api, settings.project, asked) if asked else {}
        ended = [
            replace(cloud_instance, status=InstanceStatus.TERMINATED)
            for cloud_instance in gone.values()
        ]
        found = []
        for instance in (
            *instances,
            *(cloud_instance for cloud_instance in ended if cloud_instance.id in ends),
        ):
            told = ends.get(instance.id)
            if told is not None:
                notice_ms = (
                    _epoch_ms(told.time) + NOTICE_SECONDS * 1000 if told.is_preemption else None
                )
                instance = replace(instance, end=told.end, notice_ms=notice_ms)
            found.append(instance)
        return found

    def _find_zones(self, settings: GceSettings, names: Iterable[str]) -> dict[str, str]:
        """The zones of those instances that there are."""
        able = [name for name in names if _NAME.fullmatch(name)]
        unknown = [name for name in able if name not in self._zones]
        for first in range(0, len(unknown), NAMES_IN_FILTER_MAX):
            some = unknown[first : first + NAMES_IN_FILTER_MAX]
            wanted = " OR ".join(f'(name = "{name}")' for name in some)
            found = self._read_instances(settings, wanted)
            self._zones |= {item["name"]: last_segment(item["zone"]) for item in found}
        return {name: self._zones[name] for name in able if name in self._zones}

    def _complete_section(self, section: str) -> GceSettings:
        settings = self._complete_settings(parse_section(section))
        if not settings.project:
            raise ConfigurationError("provider.project: is needed where the server has none")
        return settings

    def _pool_settings(self) -> GceSettings:
        return self._complete_section(self._settings.section)

    def _offerings_of_settings(self) -> tuple[Offering, ...]:
        return self._settings.offerings or (self._pool_settings().default_offering(),)


def _check_reachable(page: JsonObject, region: str) -> None:
    """Raise OutcomeUnknown where a page lacks a zone of the region: a list without its instances
    would say that they have ended.
    """
    missing = {last_segment(unreachable) for unreachable in page.get("unreachables", ())}
    for scope, found in page.get("items", {}).items():
        if found.get("warning", {}).get("code") == "UNREACHABLE":
            missing.add(last_segment(scope))
    here = sorted(name for name in missing if region_of(name) == region)
    if here:
        raise OutcomeUnknown(f"Compute Engine does not reach {', '.join(here)}")


def _check_operation(answer: JsonObject) -> JsonObject:
    """Return the answer to a bulk insert. Raises OutcomeUnknown where it is no operation."""
    if not {"name", "status"} <= answer.keys() or not {"zone", "region"} & answer.keys():
        raise OutcomeUnknown("Compute Engine responded with no operation")
    return answer


def _check_request(result: BulkResult, request: IntentRow) -> None:
    """Raise TokenReused where an operation was another request's."""
    other = next(
        (instance.name for instance in result.named if not is_named_by(instance.name, request)),
        None,
    )
    if other is not None:
        raise TokenReused(f"the launch token was already used, for {other}")


def _is_gone(error: CloudError) -> bool:
    return str(error).partition(":")[0] in _GONE


def _is_there_already(error: CloudError) -> bool:
    return str(error).partition(":")[0] in _THERE_ALREADY


def _to_cloud_instance(described: dict[str, Any]) -> CloudInstance:
    return CloudInstance(
        id=described["name"],
        status=_STATUS.get(described["status"], InstanceStatus.UNKNOWN),
        launched_ms=_epoch_ms(described["creationTimestamp"]),
        tags=from_labels(described.get("labels", {})),
        zone=last_segment(described["zone"]),
    )


def _epoch_ms(time: str) -> int:
    """A time of RFC 3339 as epoch milliseconds."""
    return int(datetime.fromisoformat(time).timestamp() * 1000)
