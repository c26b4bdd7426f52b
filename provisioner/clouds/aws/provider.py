"""The CloudProvider for EC2. A launch is a fleet of the type `instant`, a single synchronous call.

The client token makes a fleet request safe to repeat: EC2 executes the request once and refuses a
different request with the token. EC2 does not guarantee that the response to a repeated request
lists the instances. If a response has neither instances nor errors, the instances are looked up by
the tag of their intent.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import botocore.exceptions as sdk

from control_plane.aws.instance_types import devices_of
from control_plane.aws.vcpu_quotas import quota_advice, quotas_advice
from control_plane.fleet.records import IntentRow, Offering
from control_plane.scheduling.agent_needs import AgentDevice
from provisioner.clouds.aws.capacity_blocks import CapacityBlocks
from provisioner.clouds.aws.ec2_api import (
    PAGE_SIZE,
    Ec2Api,
    create_ec2_client,
    epoch_ms,
    equal_filter,
    error_code,
    error_message,
    read_pages,
    tag_filters,
    translate_errors,
)
from provisioner.clouds.aws.errors import (
    VCPU_QUOTA_CODES,
    end_reason,
    fleet_error,
    is_caller_refused,
)
from provisioner.clouds.aws.launch_request import (
    Ec2Settings,
    Subnet,
    fleet_request,
    instance_tags,
    parse_section,
    uses_block,
)
from provisioner.clouds.aws.launch_templates import LaunchTemplates, UserData
from provisioner.clouds.aws.offering_prices import OfferingPrices, PricedPool
from provisioner.clouds.aws.price_list import PriceSource, PriceTable
from provisioner.clouds.aws.unknown_types import UnknownTypes
from provisioner.clouds.provider import (
    CLUSTER_TAG,
    INTENT_TAG,
    POOL_TAG,
    CloudError,
    CloudInstance,
    OutcomeUnknown,
    QuotaExceeded,
)
from provisioner.model import MINUTE_MS, InstanceStatus, ProvisionerSettings

SUBNETS_TTL_MS = 60 * MINUTE_MS
NOTICE_MS = 2 * MINUTE_MS
PROVIDERS_MAX = 256

_STATUS = {
    "pending": InstanceStatus.STARTING,
    "running": InstanceStatus.RUNNING,
    "stopping": InstanceStatus.STOPPING,
    "stopped": InstanceStatus.STOPPED,
    "shutting-down": InstanceStatus.TERMINATING,
    "terminated": InstanceStatus.TERMINATED,
}
_LIVE = frozenset({InstanceStatus.STARTING, InstanceStatus.RUNNING})
_TEMPLATE_MISSING = "InvalidLaunchTemplateName.NotFoundException"
_ID = re.compile(r"\bi-[0-9a-f]{8}(?:[0-9a-f]{9})?\b")
_UNKNOWN_ID = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_NOT_SUPPORTED = frozenset({"UnsupportedOperation", "InvalidParameterCombination"})

TABLE = PriceTable()

SettingsCompletion = Callable[[Ec2Settings], Ec2Settings]
"""Returns a pool's settings, completed with values that only the deployment has."""


def unchanged_settings(settings: Ec2Settings) -> Ec2Settings:
    """Return the settings unchanged: the completion for deployments without own values."""
    return settings


class Ec2Clouds:
    """The EC2 providers of a cluster's pools, by the pools' settings.

    `cloud(settings)` returns a provider. Each provider caches its subnets, launch templates and
    prices for the lifetime of this object.
    """

    def __init__(
        self,
        user_data: UserData,
        clock: Callable[[], int],
        api: Callable[[str], Ec2Api] = create_ec2_client,
        complete_settings: SettingsCompletion = unchanged_settings,
        prices: PriceSource = TABLE,
    ) -> None:
        self._user_data = user_data
        self._clock = clock
        self._complete_settings = complete_settings
        self._prices = prices
        # Clients are shared between threads, because a new client takes a third of a second.
        self._api = lru_cache(maxsize=PROVIDERS_MAX)(api)
        self.cloud = lru_cache(maxsize=PROVIDERS_MAX)(self._new_cloud)

    def _new_cloud(self, settings: ProvisionerSettings) -> "Ec2Cloud":
        """Return a new provider for a pool's settings. A client of the region is shared.

        No request is made. Other errors in the settings are raised by the provider's methods.

        Raises:
            ConfigurationError: the pool's section is invalid, or no region is known.
            NotAllowed: AWS credentials are incomplete.
        """
        api = self._api(parse_section(settings.section).region)
        return Ec2Cloud(
            settings, self._user_data, self._clock, api, self._complete_settings, self._prices
        )


class Ec2Cloud:
    """The EC2 instances of an account in a region. `clock` returns epoch milliseconds."""

    def __init__(
        self,
        settings: ProvisionerSettings,
        user_data: UserData,
        clock: Callable[[], int],
        api: Ec2Api,
        complete_settings: SettingsCompletion = unchanged_settings,
        prices: PriceSource = TABLE,
    ) -> None:
        self._settings = settings
        self._complete_settings = complete_settings
        self._clock = clock
        self._api = api
        self._templates = LaunchTemplates(api, user_data, clock)
        self._unknown_types = UnknownTypes(api, clock)
        self._capacity_blocks = CapacityBlocks(api, clock)
        pool = PricedPool(self._offerings_of_settings, self._pool_settings, self._find_pool_subnets)
        self._prices = OfferingPrices(api, pool, prices, clock)
        self._subnets: dict[tuple[str, ...], tuple[int, list[Subnet]]] = {}

    def offerings(self) -> tuple[Offering, ...]:
        """Return the settings' offerings with hourly prices in dollars, cached for up to an hour.

        If the settings list no offerings, return one offering of the settings' instance type. A
        failed request for prices is logged. A spot offering then has the on-demand price, and an
        on-demand offering the price of the built-in table. The price 0 stands for unknown. After a
        failed request for spot prices, the result is cached for a minute.

        Raises:
            ConfigurationError: the pool's section is invalid, or the settings list no offerings and
                the slots of the instance type are unknown.
        """
        return self._prices.offerings()

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the devices that the agent of an instance type reports. () for an unknown type."""
        return devices_of(instance_type)

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch instances by an EC2 fleet, and return the launched instances.

        A missing launch template is created. Then the pool's other templates that are older than a
        day are deleted. An instance type outside the catalogue and a capacity block are checked
        first. Fewer instances than requested may be launched, unless the request is `together`
        without a capacity block. The settings are those of the request.

        A repeated request with the same token launches nothing, and returns the instances of the
        first request. The instances are STARTING, as at the launch, even if they have ended since.
        If EC2's answer lists no instance, the instances are looked up by their tags, with their
        present status.

        Raises:
            OutcomeUnknown: the instances may have been launched, or EC2 does not see the template
                yet. Repeat the request.
            TokenReused: the token belongs to a different request.
            QuotaExceeded: a quota of the account is used up. The message names the quota to raise.
            CloudError: this call launched nothing. An earlier call with the token may have launched
                instances: for example, the subnets cannot be read at the second call.
        """
        settings = self._complete_settings(parse_section(request.section))
        try:
            return self._launch(request, settings)
        except QuotaExceeded as error:
            raise _with_quota_advice(error, request, settings.region) from None

    def _launch(self, request: IntentRow, settings: Ec2Settings) -> tuple[CloudInstance, ...]:
        """Check the type and the capacity block, ensure the launch template, create the fleet.

        Return the launched instances, which may be fewer than requested.

        Raises:
            OutcomeUnknown: the launch must be repeated: EC2 did not answer, does not see the
                template yet, or lists no instance of the fleet.
            CloudError: this call launched nothing. An earlier call with the token may have launched
                the instances.
        """
        offering = request.offering
        with translate_errors():
            self._unknown_types.check(offering.instance_type, offering.slots, settings)
            if uses_block(request, settings):
                self._capacity_blocks.check(settings.capacity_reservation)
            if request.together:
                cards = self._unknown_types.network_cards(offering.instance_type)
                settings = replace(settings, described_cards=cards)
            subnets = self._find_subnets(settings)
            template = self._templates.ensure_template(request, settings)
            fleet = fleet_request(request, settings, template, subnets)
            try:
                answer = self._api.create_fleet(**fleet)
            except sdk.ClientError as error:
                if error_code(error) != _TEMPLATE_MISSING:
                    raise
                # EC2 may not see a fresh template yet, or somebody has deleted the template. The
                # next request creates it again if necessary.
                self._templates.forget_template(template)
                text = f"launch template {template} is not visible in EC2 yet"
                raise OutcomeUnknown(text) from None
            ids = [
                name for instance in answer.get("Instances", ()) for name in instance["InstanceIds"]
            ]
            if ids:
                return self._launched_instances(answer["Instances"], request, settings, subnets)
            if answer.get("Errors"):
                raise fleet_error(answer["Errors"])
            return self._find_launched(request, str(answer.get("FleetId")))

    def _launched_instances(
        self,
        groups: Sequence[dict[str, Any]],
        request: IntentRow,
        settings: Ec2Settings,
        subnets: Sequence[Subnet],
    ) -> tuple[CloudInstance, ...]:
        """Return the instances of a fleet's response as STARTING, with the zones of the subnets.

        The launch time is now, and the tags are those of the request. The zone is "" if `subnets`
        lacks the subnet. EC2 is not asked.
        """
        tags, now_ms = instance_tags(request, settings), self._clock()
        zones = {subnet.id: subnet.zone for subnet in subnets}
        instances = []
        for group in groups:
            chosen = group.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
            zone = zones.get(chosen.get("SubnetId", ""), "")
            instances += [
                CloudInstance(name, InstanceStatus.STARTING, now_ms, tags, zone=zone)
                for name in group["InstanceIds"]
            ]
        return tuple(instances)

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List the instances of the cluster, or of a single pool, in any state, by tags.

        Spot instances include EC2's interruption notices, as the time of the end. An ended instance
        is TERMINATED for about an hour, then absent. Without instances, the result is empty. The
        list is not cached. Raises CloudError if any page of instances or notices cannot be read.
        """
        tags = {CLUSTER_TAG: cluster} | ({} if pool is None else {POOL_TAG: pool})
        with translate_errors():
            return self._find_instances(tags)

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances; ignore malformed and unknown ids. Without valid ids, make no call.

        Do not wait for the ends; repeated calls are harmless. EC2 refuses the whole call if a
        single instance, such as a protected one, cannot end. Then each instance is terminated
        separately.

        Raises:
            ThrottlingError, NotAllowed, OutcomeUnknown: EC2 refuses the caller, or does not answer.
                The error is raised at once, and some instances may end.
            CloudError: an instance cannot end. The last such error is raised after all others were
                terminated.
        """
        known = [name for name in dict.fromkeys(ids) if _ID.fullmatch(name)]
        with translate_errors():
            try:
                self._terminate_together(known)
            except sdk.ClientError as error:
                if len(known) == 1 or is_caller_refused(error_code(error)):
                    raise
                self._terminate_each(known)

    def boot_log(self, instance: str) -> str:
        """Return the latest console output, or "" for an unknown instance or without output.

        Return "" also for a malformed id. Instance types without the latest output, such as Xen
        types, only have the output of the first minutes after the boot, which is requested then.
        Raises CloudError for any other refusal, or if EC2 does not answer.
        """
        with translate_errors():
            try:
                return self._console_output(instance, Latest=True)
            except sdk.ClientError as error:
                if error_code(error) in _UNKNOWN_ID:
                    return ""
                if error_code(error) not in _NOT_SUPPORTED:
                    raise
            return self._console_output(instance)

    def _console_output(self, instance: str, **options: Any) -> str:
        """Return an instance's console output, or "" without output. Raises the SDK's errors."""
        answer = self._api.get_console_output(InstanceId=instance, **options)
        return str(answer.get("Output") or "")

    def _terminate_together(self, ids: Sequence[str]) -> None:
        """Terminate instances in a single call, repeated without the ids that EC2 does not know.

        Make no call if no id is left. Raises ClientError if EC2 refuses for any other reason, or
        does not name the unknown ids; then no instance ends. Raises other errors of the SDK if EC2
        does not answer; then the instances may end.
        """
        while ids:
            try:
                self._api.terminate_instances(InstanceIds=ids)
            except sdk.ClientError as error:
                unknown = set(_ID.findall(error_message(error)))
                if error_code(error) not in _UNKNOWN_ID or unknown.isdisjoint(ids):
                    raise
                ids = [name for name in ids if name not in unknown]
            else:
                return

    def _terminate_each(self, ids: Sequence[str]) -> None:
        """Terminate each instance in a separate call; raise the last ClientError at the end.

        Unknown ids are skipped without an error. If EC2 refuses the caller, throttled or without
        access, raise the ClientError at once. Other errors of the SDK, such as a lost connection,
        are also raised at once.
        """
        last: sdk.ClientError | None = None
        for name in ids:
            try:
                self._terminate_together([name])
            except sdk.ClientError as error:
                if is_caller_refused(error_code(error)):
                    raise
                last = error
        if last is not None:
            raise last

    def _offerings_of_settings(self) -> tuple[Offering, ...]:
        """Return the settings' offerings, or else an offering of the settings' instance type.

        No prices are added, and EC2 is not asked. Raises ConfigurationError for an invalid section,
        or, without offerings, if the slots of the instance type are unknown.
        """
        section = parse_section(self._settings.section)
        return self._settings.offerings or (section.default_offering(),)

    def _pool_settings(self) -> Ec2Settings:
        """Return the pool's EC2 settings, completed by `complete_settings`.

        The deployment's values fill those that the pool lacks. The section is parsed at each call;
        "" gives the defaults. Raises ConfigurationError for an invalid section.
        """
        return self._complete_settings(parse_section(self._settings.section))

    def _find_pool_subnets(self) -> Sequence[Subnet]:
        """Return the subnets of the pool's settings, or else the default subnet of each zone.

        The subnets are read from EC2, or cached for up to SUBNETS_TTL_MS. Raises CloudError if EC2
        cannot list the subnets or does not know a named subnet, or if the section is invalid.
        """
        with translate_errors():
            return self._find_subnets(self._pool_settings())

    def _find_launched(self, request: IntentRow, fleet: str) -> tuple[CloudInstance, ...]:
        """Return the listed instances with the tags of a launch: cluster, pool and launch id.

        The instances have their present state, ended ones included. `fleet` is the id for messages.

        Raises:
            OutcomeUnknown: EC2 lists no instance, or the list cannot be read. The launch may have
                succeeded in both cases.
        """
        tags = {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool, INTENT_TAG: request.id}
        text = f"fleet {fleet} returned neither instances nor errors"
        try:
            with translate_errors():
                instances = tuple(self._find_instances(tags))
        except CloudError as error:
            raise OutcomeUnknown(f"{text}; its instances cannot be listed: {error}") from None
        if not instances:
            raise OutcomeUnknown(text)
        return instances

    def _find_instances(self, tags: dict[str, str]) -> Sequence[CloudInstance]:
        """Return the instances that have all of the given tags, in any state.

        Interruption notices are only requested if a spot instance that starts or runs is listed,
        and are otherwise None. Empty without instances. Raises errors of the SDK.
        """
        filters = tag_filters(tags)
        pages = read_pages(self._api.describe_instances, Filters=filters, MaxResults=PAGE_SIZE)
        described = [
            instance
            for page in pages
            for group in page["Reservations"]
            for instance in group["Instances"]
        ]
        instances = [_to_cloud_instance(item) for item in described]
        if not _has_live_spot(described):
            return instances
        notices = self._interruption_notices()
        return [replace(instance, notice_ms=notices.get(instance.id)) for instance in instances]

    def _interruption_notices(self) -> dict[str, int]:
        """Return the time at which each spot instance with a notice ends, by instance id.

        The times are epoch milliseconds. All notices of the account in the region are read. EC2's
        API gives the time of the notice only, so NOTICE_MS is added. The exact time is in the
        instance's own metadata. Empty without notices. Raises errors of the SDK.
        """
        filters = [equal_filter("status-code", "marked-for-termination")]
        describe = self._api.describe_spot_instance_requests
        return {
            spot_instance_request["InstanceId"]: epoch_ms(
                spot_instance_request["Status"]["UpdateTime"]
            )
            + NOTICE_MS
            for page in read_pages(describe, Filters=filters, MaxResults=PAGE_SIZE)
            for spot_instance_request in page["SpotInstanceRequests"]
            if "InstanceId" in spot_instance_request
        }

    def _find_subnets(self, settings: Ec2Settings) -> Sequence[Subnet]:
        """Return the subnets that the settings name, or the default subnet of each zone.

        Subnets are cached for SUBNETS_TTL_MS; errors are not. Empty if the settings name no subnet
        and the region has no default subnets. Raises errors of the SDK, also for an unknown subnet.
        """
        named = settings.network_interface.subnets
        until_ms, subnets = self._subnets.get(named, (0, []))
        if self._clock() >= until_ms:
            query: dict[str, Any] = {"Filters": [equal_filter("default-for-az", "true")]}
            pages = read_pages(
                self._api.describe_subnets, **({"SubnetIds": list(named)} if named else query)
            )
            described = (subnet for page in pages for subnet in page["Subnets"])
            subnets = [Subnet(item["SubnetId"], item["AvailabilityZone"]) for item in described]
            self._subnets[named] = (self._clock() + SUBNETS_TTL_MS, subnets)
        return subnets


def _with_quota_advice(error: QuotaExceeded, request: IntentRow, region: str) -> QuotaExceeded:
    """Return a new error with advice: the vCPU quota to raise, or else the console's quota page.

    The code at the beginning of the error's text decides. AWS is not asked.
    """
    code, advice = str(error).partition(":")[0], ""
    if code in VCPU_QUOTA_CODES:
        advice = quota_advice(request.offering.instance_type, request.offering.market, region)
    return QuotaExceeded(f"{error}; {advice or quotas_advice(code, region)}")


def _has_live_spot(described: Sequence[dict[str, Any]]) -> bool:
    """Whether EC2 describes a spot instance that starts or runs, and so may have a notice."""
    return any(
        item.get("InstanceLifecycle") == "spot" and _STATUS.get(item["State"]["Name"]) in _LIVE
        for item in described
    )


def _to_cloud_instance(described: dict[str, Any]) -> CloudInstance:
    """Convert an instance of EC2's DescribeInstances. An unlisted state becomes UNKNOWN.

    The result has no notice: DescribeInstances has none. A missing zone or reservation is "", and
    `end` is None without a reason.
    """
    reason = described.get("StateReason") or {}
    return CloudInstance(
        id=described["InstanceId"],
        status=_STATUS.get(described["State"]["Name"], InstanceStatus.UNKNOWN),
        launched_ms=epoch_ms(described["LaunchTime"]),
        tags={tag["Key"]: tag["Value"] for tag in described.get("Tags", ())},
        end=end_reason(reason.get("Code", ""), reason.get("Message", "")),
        zone=described.get("Placement", {}).get("AvailabilityZone", ""),
        reservation=described.get("CapacityReservationId", ""),
    )
