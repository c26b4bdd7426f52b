"""The self-test's calls of Google Cloud: maintenance events, alarms, and the end of instances."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_pages
from infra.gcp.instance_ends import COMPUTE, list_parts
from infra.gcp.names import Names
from infra.verification import (
    AlarmCheck,
    ListedInstance,
    Place,
    PricedOffering,
    SentNotice,
    VerifyFailed,
    read_offerings,
)
from provisioner.clouds.gcp.launch_request import GceSettings
from provisioner.clouds.gcp.provider import GceClouds

_MONITORING: Final = "https://monitoring.googleapis.com/v3"
# The names of the stack's alert policies.
ALARMS: Final = ("errors", "minute")


class GcpVerifier:
    """The self-test's calls of Google Cloud for a stack."""

    def __init__(self, names: Names, api: GoogleApi) -> None:
        self._names = names
        self._api = api

    def place(self) -> Place:
        """Return the project and the region. Google is not called."""
        names = self._names
        return Place(names.project, names.region, (names.project_number,))

    def price_offerings(self, provider: str) -> list[PricedOffering]:
        """Return the cheapest offerings of a pool by the built-in list prices.

        `provider` is the section of the pool as JSON. Google is not called. Raise VerifyFailed.
        """
        names = self._names

        def complete(settings: GceSettings) -> GceSettings:
            region = settings.region if settings.region or settings.zone else names.region
            return replace(settings, region=region, project=settings.project or names.project)

        clouds = GceClouds(
            lambda request: b"",
            lambda: int(time.time() * 1000),
            complete_settings=complete,
            # Prices need no call.
            api=lambda: cast(Any, None),
        )
        return read_offerings(provider, clouds.cloud)

    def send_notice(self, instance: str, zone: str, role: str) -> SentNotice:
        """Simulate a maintenance event, which preempts a spot instance. `role` is not used.

        Raise VerifyFailed.
        """
        with _refusals("the maintenance event"):
            self._api.call("POST", f"{self._url(zone, instance)}/simulateMaintenanceEvent")
        return SentNotice("Compute Engine: simulateMaintenanceEvent", False)

    def check_alarms(self) -> list[AlarmCheck]:
        """Check that each alert policy exists, is enabled and has a channel. Raise VerifyFailed.

        Google has no call that triggers a policy, so a policy in order is skipped.
        """
        wanted = [self._names.part(name) for name in ALARMS]
        url = f"{_MONITORING}/projects/{self._names.project}/alertPolicies"
        with _refusals("the list of alert policies"):
            policies = {
                str(policy.get("displayName")): policy
                for page in read_pages(self._api, url)
                for policy in page.get("alertPolicies", ())
            }
        return [_alarm_check(name, policies.get(name)) for name in wanted]

    def list_instances(self) -> list[ListedInstance]:
        """Return the cluster's instances that Compute Engine lists. Raise VerifyFailed."""
        with _refusals("the list of instances"):
            found = list_parts(self._names, self._api, "instance")
        instances = []
        for place, state in sorted(found.items()):
            # projects/PROJECT/zones/ZONE/instances/NAME
            *_, zone, _, name = place.split("/")
            command = f"gcloud compute instances delete {name} --zone {zone}"
            removal = f"{command} --project {self._names.project}"
            instances.append(ListedInstance(name, zone, state.lower(), removal))
        return instances

    def end_instances(self, instances: Sequence[tuple[str, str]]) -> None:
        """Delete instances of the cluster, given as pairs of zone and name.

        Instances that Compute Engine does not list with the cluster's label are ignored. Raise
        VerifyFailed.
        """
        own = {instance.id: instance.zone for instance in self.list_instances()}
        with _refusals("the end of the instances"):
            for _, name in instances:
                if name in own:
                    self._delete(own[name], name)

    def _delete(self, zone: str, name: str) -> None:
        """Request the deletion of an instance. Ignore a missing one; raise GoogleError."""
        try:
            self._api.call("DELETE", self._url(zone, name))
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise

    def _url(self, zone: str, instance: str) -> str:
        """Return the URL of an instance in Compute Engine's API."""
        return f"{COMPUTE}/projects/{self._names.project}/zones/{zone}/instances/{instance}"


def _alarm_check(name: str, policy: object) -> AlarmCheck:
    """Return the result for an alert policy in Google's form. None is a missing policy."""
    if not isinstance(policy, dict):
        return AlarmCheck(name, "failed", "the alert policy does not exist")
    if not policy.get("enabled", True):
        return AlarmCheck(name, "failed", "the alert policy is disabled")
    if not policy.get("notificationChannels"):
        return AlarmCheck(name, "skipped", "the alert policy has no channel: set alarmEmail")
    return AlarmCheck(
        name, "skipped", "exists, is enabled and has a channel; Google has no call that triggers it"
    )


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Convert GoogleErrors in the block into VerifyFailed; `what` begins the message."""
    try:
        yield
    except GoogleError as error:
        raise VerifyFailed(f"{what} failed: {error}"[:600]) from None
