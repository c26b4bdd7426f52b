"""Instances of EC2, launched by fleets of the type `instant`: one call that answers what it got.

A fleet's client token makes it safe to repeat: EC2 does it once, and refuses the token with another
request. What EC2 does not promise is that the repeated answer names the instances again; where it
names neither instances nor errors they are looked for by the tag of their intent.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import botocore.exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError

from control_plane.fleet.instance_types import on_demand_price
from control_plane.fleet.records import IntentRow, Market, Offering
from detcloud.aws import session
from provisioner.clouds.aws_errors import classified, is_of_the_caller, narrowest
from provisioner.clouds.aws_template import (
    ROOT_DEVICE_DEFAULT,
    Ec2Settings,
    Subnet,
    fleet_request,
    read_section,
    tags_of,
    template_data,
    template_name,
    written_tags,
)
from provisioner.clouds.provider import (
    CLUSTER_TAG,
    INTENT_TAG,
    POOL_TAG,
    CloudError,
    CloudInstance,
    Misconfigured,
    NotAllowed,
    OutcomeUnknown,
)
from provisioner.model import MINUTE_MS, InstanceStatus, ProvisionerSettings

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3
# A fleet answers in a few seconds; later than this the next pass asks again with the same token.
ANSWER_SECONDS = 15
# Prices and subnets are looked up again after so long.
KEPT_MS = 60 * MINUTE_MS
# And prices that EC2 did not tell: until then spot costs as on demand.
UNTOLD_MS = MINUTE_MS
PRICES_SINCE_SECONDS = 3600
# A pool's former launch templates go after so long, when a new one comes.
TEMPLATE_KEPT_MS = 24 * 60 * MINUTE_MS
NOTICE_MS = 2 * MINUTE_MS
PAGE = 1000
TEMPLATES_PAGE = 200
PROVIDERS_MAX = 256

_STATUS = {
    "pending": InstanceStatus.STARTING,
    "running": InstanceStatus.RUNNING,
    "stopping": InstanceStatus.STOPPING,
    "stopped": InstanceStatus.STOPPED,
    "shutting-down": InstanceStatus.TERMINATING,
    "terminated": InstanceStatus.TERMINATED,
}
_LIVES = frozenset({InstanceStatus.STARTING, InstanceStatus.RUNNING})
_TEMPLATE_IS_THERE = "InvalidLaunchTemplateName.AlreadyExistsException"
_TEMPLATE_IS_MISSING = "InvalidLaunchTemplateName.NotFoundException"
_ID = re.compile(r"\bi-[0-9a-f]{8}(?:[0-9a-f]{9})?\b")
_UNKNOWN_ID = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
_WITHOUT_ANSWER = (sdk.HTTPClientError, ResponseParserError)
_WITHOUT_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
)

UserData = Callable[[IntentRow], bytes]
"""The boot script of a request's instances. The same request has the same one for as long as it may
be repeated, and it is best the same for all requests of a pool: each other one is a template.
"""


Completed = Callable[[Ec2Settings], Ec2Settings]


def as_they_are(settings: Ec2Settings) -> Ec2Settings:
    """Settings that need nothing more."""
    return settings


class Ec2Api(Protocol):
    """What is called of EC2, as boto3's client has it: the permissions that are needed."""

    def create_fleet(self, **request: Any) -> dict[str, Any]: ...
    def create_launch_template(self, **request: Any) -> dict[str, Any]: ...
    def delete_launch_template(self, **request: Any) -> dict[str, Any]: ...
    def describe_images(self, **request: Any) -> dict[str, Any]: ...
    def describe_instances(self, **request: Any) -> dict[str, Any]: ...
    def describe_launch_templates(self, **request: Any) -> dict[str, Any]: ...
    def describe_spot_instance_requests(self, **request: Any) -> dict[str, Any]: ...
    def describe_spot_price_history(self, **request: Any) -> dict[str, Any]: ...
    def describe_subnets(self, **request: Any) -> dict[str, Any]: ...
    def terminate_instances(self, **request: Any) -> dict[str, Any]: ...


def ec2_api(region: str) -> Ec2Api:
    """A client that never repeats a call by itself. Raises NotAllowed, Misconfigured."""
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
    )
    with _translated():
        client: Ec2Api = session().create_client("ec2", region or None, config=config)
        return client


class Ec2Clouds:
    """The EC2 of pools, by their settings: what one has learned of subnets, templates and prices is
    kept for as long as this object is. `completed` adds what the deployment knows and pools do not.
    """

    def __init__(
        self,
        user_data: UserData,
        clock: Callable[[], int],
        api: Callable[[str], Ec2Api] = ec2_api,
        completed: Completed = as_they_are,
    ) -> None:
        self._user_data = user_data
        self._clock = clock
        self._completed = completed
        # A client is safe to share between threads, and costs a third of a second.
        self._api = lru_cache(maxsize=PROVIDERS_MAX)(api)
        self.cloud = lru_cache(maxsize=PROVIDERS_MAX)(self._cloud)

    def _cloud(self, settings: ProvisionerSettings) -> "Ec2Cloud":
        api = self._api(read_section(settings.section).region)
        return Ec2Cloud(settings, self._user_data, self._clock, api, self._completed)


class Ec2Cloud:
    """The instances of one account in one region. `clock` gives epoch ms."""

    def __init__(
        self,
        settings: ProvisionerSettings,
        user_data: UserData,
        clock: Callable[[], int],
        api: Ec2Api,
        completed: Completed = as_they_are,
    ) -> None:
        self._settings = settings
        self._completed = completed
        self._user_data = user_data
        self._clock = clock
        self._api = api
        self._templates: set[str] = set()
        self._devices: dict[str, str] = {}
        self._subnets: dict[tuple[str, ...], tuple[int, list[Subnet]]] = {}
        self._sold: tuple[int, tuple[Offering, ...]] = (0, ())

    def offerings(self) -> tuple[Offering, ...]:
        """See CloudProvider: those of the settings, or the one that their type describes. Prices
        are at most an hour old; those that EC2 did not tell are asked for again a minute later.
        """
        until_ms, sold = self._sold
        if self._clock() >= until_ms:
            kept_ms, sold = self._priced()
            self._sold = (self._clock() + kept_ms, sold)
        return sold

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """See CloudProvider. The instances are told of as they were when they were launched."""
        settings = self._completed(read_section(request.section))
        with _translated():
            subnets = self._subnets_of(settings)
            template = self._template(request, settings)
            fleet = fleet_request(request, settings, template, subnets)
            try:
                answer = self._api.create_fleet(**fleet)
            except sdk.ClientError as error:
                if _code(error) != _TEMPLATE_IS_MISSING:
                    raise
                # Fresh ones are not seen everywhere at once, or somebody removed it: the same
                # request is worth another try, which makes it again.
                self._templates.discard(template)
                raise OutcomeUnknown(f"launch template {template} is not there yet") from None
            found = [name for it in answer.get("Instances", ()) for name in it["InstanceIds"]]
            if found:
                tags, now_ms = tags_of(request, settings), self._clock()
                starting = InstanceStatus.STARTING
                return tuple(CloudInstance(name, starting, now_ms, tags) for name in found)
            if answer.get("Errors"):
                raise narrowest(answer["Errors"])
            return self._launched(request, str(answer.get("FleetId")))

    def list(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """See CloudProvider."""
        with _translated():
            return self._found({CLUSTER_TAG: cluster} | ({} if pool is None else {POOL_TAG: pool}))

    def terminate(self, ids: Sequence[str]) -> None:
        """See CloudProvider. EC2 refuses all of them where it cannot end one, such as a protected
        one: then each is asked for alone, and the last refusal is raised at the end.
        """
        asked = [name for name in dict.fromkeys(ids) if _ID.fullmatch(name)]
        with _translated():
            try:
                self._end(asked)
            except sdk.ClientError as error:
                if len(asked) == 1 or is_of_the_caller(_code(error)):
                    raise
                self._end_each(asked)

    def _end(self, left: Sequence[str]) -> None:
        """Ends those that EC2 knows; where it refuses, maybe none of them."""
        while left:
            try:
                self._api.terminate_instances(InstanceIds=left)
            except sdk.ClientError as error:
                unknown = set(_ID.findall(_message(error)))
                if _code(error) not in _UNKNOWN_ID or unknown.isdisjoint(left):
                    raise
                left = [name for name in left if name not in unknown]
            else:
                return

    def _end_each(self, ids: Sequence[str]) -> None:
        last: sdk.ClientError | None = None
        for name in ids:
            try:
                self._end([name])
            except sdk.ClientError as error:
                if is_of_the_caller(_code(error)):
                    raise
                last = error
        if last is not None:
            raise last

    def _launched(self, request: IntentRow, fleet: str) -> tuple[CloudInstance, ...]:
        tags = {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool, INTENT_TAG: request.id}
        found = tuple(self._found(tags))
        if not found:
            raise OutcomeUnknown(f"fleet {fleet} names neither instances nor errors")
        return found

    def _found(self, tags: dict[str, str]) -> Sequence[CloudInstance]:
        filters = [_equal(f"tag:{key}", value) for key, value in tags.items()]
        pages = _pages(self._api.describe_instances, Filters=filters, MaxResults=PAGE)
        found = [
            it for page in pages for group in page["Reservations"] for it in group["Instances"]
        ]
        shown = [_shown(it) for it in found]
        is_spot = {it["InstanceId"] for it in found if it.get("InstanceLifecycle") == "spot"}
        if not any(it.id in is_spot and it.status in _LIVES for it in shown):
            return shown
        notices = self._notices()
        return [replace(it, notice_ms=notices.get(it.id)) for it in shown]

    def _notices(self) -> dict[str, int]:
        """When spot instances of the account are taken away. EC2 tells the instance itself the
        time, and others no more than since when it is so.
        """
        filters = [_equal("status-code", "marked-for-termination")]
        pages = _pages(self._api.describe_spot_instance_requests, Filters=filters, MaxResults=PAGE)
        return {
            it["InstanceId"]: _ms(it["Status"]["UpdateTime"]) + NOTICE_MS
            for page in pages
            for it in page["SpotInstanceRequests"]
            if "InstanceId" in it
        }

    def _template(self, request: IntentRow, settings: Ec2Settings) -> str:
        """The name of the pool's launch template, which is there from now on."""
        data = template_data(
            settings, self._user_data(request), self._root_device(settings.image_id)
        )
        name = template_name(request, data)
        if name in self._templates:
            return name
        pool = {CLUSTER_TAG: request.cluster, POOL_TAG: request.pool}
        tags = {"ResourceType": "launch-template", "Tags": written_tags(pool)}
        try:
            # Its name is token enough: a client token would also be that of one since deleted.
            self._api.create_launch_template(
                LaunchTemplateName=name, LaunchTemplateData=data, TagSpecifications=[tags]
            )
        except sdk.ClientError as error:
            if _code(error) != _TEMPLATE_IS_THERE:
                raise
        else:
            self._remove_templates(pool, name)
        self._templates.add(name)
        return name

    def _remove_templates(self, pool: dict[str, str], name: str) -> None:
        """Removes the pool's templates but that one. The young may belong to a launch that is under
        way; who needs one that is gone makes it again.
        """
        filters = [_equal(f"tag:{key}", value) for key, value in pool.items()]
        before_ms = self._clock() - TEMPLATE_KEPT_MS
        api = self._api
        try:
            pages = _pages(
                api.describe_launch_templates, Filters=filters, MaxResults=TEMPLATES_PAGE
            )
            for found in [it for page in pages for it in page["LaunchTemplates"]]:
                if found["LaunchTemplateName"] != name and _ms(found["CreateTime"]) < before_ms:
                    api.delete_launch_template(LaunchTemplateName=found["LaunchTemplateName"])
        except (sdk.ClientError, sdk.BotoCoreError, ResponseParserError) as error:
            log.info("launch templates of %s are left: %s", pool, type(error).__name__)

    def _root_device(self, image: str) -> str:
        """What the image calls its root disk."""
        if not image or image.startswith("resolve:"):
            return ROOT_DEVICE_DEFAULT
        if image not in self._devices:
            found = self._api.describe_images(ImageIds=[image])["Images"]
            if not found:
                raise Misconfigured(f"provider.image_id: there is no image {image!r:.80} here")
            self._devices[image] = found[0].get("RootDeviceName", ROOT_DEVICE_DEFAULT)
        return self._devices[image]

    def _subnets_of(self, settings: Ec2Settings) -> Sequence[Subnet]:
        """Those that are named, or the default VPC's."""
        named = settings.network_interface.subnets
        until_ms, subnets = self._subnets.get(named, (0, []))
        if self._clock() >= until_ms:
            which: dict[str, Any] = {"Filters": [_equal("default-for-az", "true")]}
            pages = _pages(
                self._api.describe_subnets, **({"SubnetIds": list(named)} if named else which)
            )
            found = (it for page in pages for it in page["Subnets"])
            subnets = [Subnet(it["SubnetId"], it["AvailabilityZone"]) for it in found]
            self._subnets[named] = (self._clock() + KEPT_MS, subnets)
        return subnets

    def _priced(self) -> tuple[int, tuple[Offering, ...]]:
        """For how long they hold (ms), and the offerings with their prices."""
        section = read_section(self._settings.section)
        sold = self._settings.offerings or (section.offering(),)
        unknown = [it for it in sold if not it.price_per_hour]
        spot = self._spot_prices({it.instance_type for it in unknown if it.market is Market.SPOT})
        priced = tuple(
            it if it.price_per_hour else replace(it, price_per_hour=_price(it, spot or {}))
            for it in sold
        )
        return UNTOLD_MS if spot is None else KEPT_MS, priced

    def _spot_prices(self, types: set[str]) -> dict[tuple[str, str], float] | None:
        """By type and zone as of now; None where EC2 does not tell: then work goes on."""
        if not types:
            return {}
        # What is in force was published before, and our clock may go ahead of theirs.
        since = self._clock() / 1000 - PRICES_SINCE_SECONDS
        try:
            with _translated():
                pages = _pages(
                    self._api.describe_spot_price_history,
                    InstanceTypes=sorted(types),
                    ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
                    StartTime=since,
                    MaxResults=PAGE,
                )
                found = [it for page in pages for it in page["SpotPriceHistory"]]
        except CloudError as error:
            log.warning("spot prices are not known and taken to be those on demand: %s", error)
            return None
        found.sort(key=lambda it: _ms(it["Timestamp"]))
        return {
            (it["InstanceType"], it["AvailabilityZone"]): float(it["SpotPrice"]) for it in found
        }


def _price(offering: Offering, spot: dict[tuple[str, str], float]) -> float:
    """Dollars an hour. Where the zone is open, the most that it may be: no bill comes as a
    surprise.
    """
    most = on_demand_price(offering.instance_type)
    if offering.market is Market.ON_DEMAND:
        return most
    zones = [
        price
        for (instance_type, zone), price in spot.items()
        if instance_type == offering.instance_type and offering.zone in ("", zone)
    ]
    return max(zones, default=most)


def _shown(found: dict[str, Any]) -> CloudInstance:
    return CloudInstance(
        id=found["InstanceId"],
        status=_STATUS.get(found["State"]["Name"], InstanceStatus.UNKNOWN),
        launched_ms=_ms(found["LaunchTime"]),
        tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", ())},
    )


def _pages(describe: Callable[..., dict[str, Any]], **request: Any) -> Iterator[dict[str, Any]]:
    """Every page of an answer."""
    token = ""
    while True:
        page = describe(**request, **({"NextToken": token} if token else {}))
        yield page
        token = page.get("NextToken", "")
        if not token:
            return


def _equal(name: str, value: str) -> dict[str, Any]:
    return {"Name": name, "Values": [value]}


def _ms(time: Any) -> int:
    return int(time.timestamp() * 1000)


def _code(error: sdk.ClientError) -> str:
    return str(error.response["Error"].get("Code", ""))


def _message(error: sdk.ClientError) -> str:
    return str(error.response["Error"].get("Message", ""))


@contextmanager
def _translated() -> Iterator[None]:
    """The SDK's errors as ours. Theirs are not passed on: they hold what no log should."""
    try:
        yield
    except sdk.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        raise classified(_code(error), _message(error), status) from None
    except _WITHOUT_ANSWER as error:
        raise OutcomeUnknown(f"EC2 did not answer: {type(error).__name__}") from None
    except _WITHOUT_CREDENTIALS as error:
        raise NotAllowed(f"there are no credentials for AWS: {type(error).__name__}") from None
    except sdk.BotoCoreError as error:
        raise Misconfigured(f"EC2 cannot be asked: {str(error)[:400]}") from None
