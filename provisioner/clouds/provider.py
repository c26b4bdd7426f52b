"""The CloudProvider protocol: where instances come from.

An instance carries the tags that its launch gave it, and its id is the name of its agent, which
enrols by itself. No method waits for an instance to boot or to end: `list_instances` reports it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.fleet.records import ErrorKind, IntentRow, Offering
from provisioner.model import EndReason, InstanceStatus

CLUSTER_TAG = "detcloud-cluster"
POOL_TAG = "detcloud-pool"
INTENT_TAG = "detcloud-intent"


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """An instance as its cloud lists it. `notice_ms`: when it is taken away, as announced;
    `rebalance`: the cloud says that this has become likely; `end`: why it ends or has ended, where
    the cloud says; `boot_report`: what it says itself of a boot that failed;
    `zone`: where it is, "" where the cloud has no zones; `reservation`: the reserved capacity that
    it takes up, whose end is its own, "" without any.
    """

    id: str
    status: InstanceStatus
    launched_ms: int
    tags: Mapping[str, str]
    notice_ms: int | None = None
    rebalance: bool = False
    end: EndReason | None = None
    boot_report: str = ""
    zone: str = ""
    reservation: str = ""


class CloudError(Exception):
    """A failed request to a cloud; `kind` tells what that means for another try."""

    kind = ErrorKind.UNKNOWN


class NoCapacity(CloudError):
    """The cloud has no such instance left at this place, for a while."""

    kind = ErrorKind.CAPACITY


class QuotaExceeded(CloudError):
    """The account's quota for such instances is used up."""

    kind = ErrorKind.QUOTA


class NotAllowed(CloudError):
    """The credentials are missing, wrong, or not sufficient."""

    kind = ErrorKind.AUTH


class ConfigurationError(CloudError):
    """The request can never succeed as it is: an unknown image, type or network."""

    kind = ErrorKind.CONFIGURATION


class TokenReused(ConfigurationError):
    """The token was used before, with another request."""


class ThrottlingError(CloudError):
    """There were too many calls: nothing was done."""

    kind = ErrorKind.THROTTLED


class OutcomeUnknown(CloudError):
    """The request was not answered and may have been carried out: repeat it with the same token."""


class LaunchUnderWay(OutcomeUnknown):
    """The cloud took the request and does not say yet what comes of it."""


class CloudProvider(Protocol):
    """The instances of one account at one place. Safe to call from several threads and processes at
    once.

    Each method raises the most specific CloudError, and never an error of an SDK. No method
    retries: the caller does.
    """

    def offerings(self) -> tuple[Offering, ...]:
        """The offerings that can be launched here, in the order of preference, with prices if
        known. May be cached for hours.
        """

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch at least one and at most `request.count` instances, tagged with the request's
        cluster, pool and intent from their first moment; they may become visible later. Where the
        request is `together` it is all of them or none, and all in one zone.

        `request.token` makes it safe to repeat: the same request with the same token returns the
        same instances, also those that have ended since, and launches none. Another request with
        that token raises TokenReused. A token is valid for an hour at least. After OutcomeUnknown
        anything may have happened, and LaunchUnderWay says that nothing is wrong with that; after
        any other error nothing was launched, as far as the cloud knows.
        """

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """Return all instances tagged with the cluster, and with the pool unless None, in any
        state.

        Eventually consistent: an instance may be missing or show an older state up to 40 s after
        its launch or a change. One that has ended is listed as TERMINATED for a while or not at
        all.
        """

    def terminate(self, ids: Sequence[str]) -> None:
        """Ask for the end of instances, whatever their state; their disks are deleted with them.

        Repeating it is harmless. An unknown id is no error: the instance may be gone, or be so
        fresh that the cloud does not see it yet, and is to be terminated again while it is listed.
        """

    def boot_log(self, instance: str) -> str:
        """Return what an instance wrote while it booted, the end of it at least; "" where the cloud
        has nothing of it, as of one that is unknown.

        There for as long as the instance, and for a while after its end. It may hold what its
        machine image and its pool's own script wrote: callers that show it mask secrets.
        """
