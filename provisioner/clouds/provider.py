"""The CloudProvider protocol, which launches, lists and terminates instances of a cloud.

An instance keeps the tags of its launch. Its id is the name of its agent, which enrols on its own.
No method waits for a boot or an end; `list_instances` reports the progress.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.fleet.records import ErrorKind, IntentRow, Offering
from control_plane.scheduling.agent_needs import AgentDevice
from provisioner.model import EndReason, InstanceStatus, ProvisionerSettings

CLUSTER_TAG = "detcloud-cluster"
POOL_TAG = "detcloud-pool"
INTENT_TAG = "detcloud-intent"

TERMINATION_BATCH_MAX = 100


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """An instance in the cloud's list."""

    id: str
    status: InstanceStatus
    launched_ms: int
    """The launch time in epoch milliseconds, by the cloud's clock."""
    tags: Mapping[str, str]
    """The instance's tags, with the tags of the cluster, the pool and the launch's id."""
    notice_ms: int | None = None
    """The announced time at which the cloud takes the instance away; None without a notice."""
    rebalance: bool = False
    """Whether the cloud recommends replacing the instance."""
    end: EndReason | None = None
    """The reason that the cloud gives for the instance's end; None if it lives or is unknown."""
    boot_report: str = ""
    """The report of a failed boot that the instance sent itself, or ""."""
    zone: str = ""
    """The instance's zone; "" in a cloud without zones."""
    reservation: str = ""
    """The id of the reserved capacity that the instance uses and ends with, or ""."""
    uid: str = ""
    """The cloud's number of the instance, if the id is a name that another instance may have.

    "" if the cloud has not told the number yet, and in a cloud that never gives an id twice.
    """


class CloudError(Exception):
    """A failed request to a cloud. `kind` decides on the back-off of the offering."""

    kind = ErrorKind.UNKNOWN


class NoCapacity(CloudError):
    """A temporary lack of instances of the requested type in the cloud."""

    kind = ErrorKind.CAPACITY


class QuotaExceeded(CloudError):
    """An account's used-up quota."""

    kind = ErrorKind.QUOTA


class NotAllowed(CloudError):
    """Missing, wrong or insufficient credentials."""

    kind = ErrorKind.AUTH


class BatchRefused(NotAllowed):
    """A call for several instances that the cloud refuses, where a call for each may be allowed.

    Nothing was launched. The caller launches by requests with `singly` for a while.
    """


class ConfigurationError(CloudError):
    """A request that cannot succeed unchanged: an unknown image, instance type or network."""

    kind = ErrorKind.CONFIGURATION


class TokenReused(ConfigurationError):
    """A token of a launch (`IntentRow.token`) that was used before with a different request."""


class ThrottlingError(CloudError):
    """Too many calls. The cloud has ignored the request."""

    kind = ErrorKind.THROTTLED


class OutcomeUnknown(CloudError):
    """A request without a response, which the cloud may have executed.

    The caller repeats the request with the same token.
    """


class LaunchUnderWay(OutcomeUnknown):
    """A launch that the cloud has accepted and not finished."""


class CloudProvider(Protocol):
    """The instances of an account in a region. Safe for concurrent threads and processes.

    Each method raises the most specific CloudError and never an SDK's error. No method retries a
    failed request; the caller does.
    """

    def offerings(self) -> tuple[Offering, ...]:
        """Return the pool's offerings in order of preference, with prices in dollars, 0 if unknown.

        Without offerings in the settings, the cloud chooses. The result may be cached for hours. A
        failed request for prices is no error. Raises CloudError for unusable settings.
        """

    def devices_of(self, instance_type: str) -> tuple[AgentDevice, ...]:
        """Return the devices that the agent of an instance type reports, each once.

        Return () for an unknown type. No request is sent.
        """

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch 1 to `request.count` instances, and return the launched instances.

        From the start, the instances have the tags of the request's cluster, pool and id. They
        may appear in the cloud's list later. A `together` request launches all of its instances in
        one zone, or none; a launch into a capacity block may launch a part. Do not wait for a boot.

        A repeated request with the same `request.token` launches nothing and returns the instances
        of the first request, including ended ones. The cloud remembers a token for at least an
        hour.

        Raises:
            TokenReused: the token belongs to a different request.
            LaunchUnderWay: the launch is in progress; repeat the request later.
            OutcomeUnknown: the instances may have been launched.
            BatchRefused: the cloud refuses the call for several instances, and the request is not
                `singly`.
            CloudError: as far as the cloud reports, this call launched nothing. An earlier call
                with the token may have launched the instances.
        """

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """Return the tagged instances of the cluster, or of a single pool, in any state.

        The list is eventually consistent: for up to 40 s after a launch or change, an instance may
        be missing or have an older state. An ended instance is TERMINATED for a while, or absent at
        once in some clouds, and absent later. The list is empty without instances. Raises
        CloudError if any part of the list cannot be read.
        """

    def terminate(self, ids: Sequence[str]) -> None:
        """Request the end of instances in any state, and the deletion of the disks.

        Do not wait for the end.

        Repeated calls and unknown ids are harmless. The cloud may not know a fresh instance yet, so
        the caller repeats the call while the instance is listed. Any number of ids is allowed, also
        none. Raises CloudError; some instances may end then.
        """

    def boot_log(self, instance: str) -> str:
        """Return at least the end of an instance's boot output, or "" without output.

        The result is "" also for an unknown instance. The cloud keeps the output for a while after
        the instance's end. The output may contain secrets that the machine image or the pool's
        script wrote, so callers mask the output before they show it. Raises CloudError.
        """


CloudFactory = Callable[[ProvisionerSettings], CloudProvider]
"""Returns the cloud provider for a pool's settings. Raises CloudError."""


def terminate_in_batches(cloud: CloudProvider, ids: Sequence[str]) -> None:
    """Request the end of instances in calls of at most TERMINATION_BATCH_MAX; no ids, no call.

    Raises the CloudError of the first call that fails. The calls before have succeeded, some
    instances of the failed call may end, and the later instances are not requested.
    """
    for first in range(0, len(ids), TERMINATION_BATCH_MAX):
        cloud.terminate(ids[first : first + TERMINATION_BATCH_MAX])
