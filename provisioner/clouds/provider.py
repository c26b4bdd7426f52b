"""The CloudProvider seam: where instances come from.

An instance carries the tags that its launch gave it, and its id is the name of its agent, which
enrols by itself. Nothing here waits for an instance to boot or to end: `list` tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.fleet.records import ErrorKind, IntentRow, Offering
from provisioner.model import InstanceStatus

CLUSTER_TAG = "detcloud-cluster"
POOL_TAG = "detcloud-pool"
INTENT_TAG = "detcloud-intent"


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """An instance as its cloud lists it. `notice_ms`: when it is taken away, as announced;
    `rebalance`: the cloud says that this has become likely.
    """

    id: str
    status: InstanceStatus
    launched_ms: int
    tags: Mapping[str, str]
    notice_ms: int | None = None
    rebalance: bool = False


class CloudError(Exception):
    """The cloud did not do what it was asked to; `kind` tells what that means for another try."""

    kind = ErrorKind.UNKNOWN


class NoCapacity(CloudError):
    """It has no such instance left at this place, for a while."""

    kind = ErrorKind.CAPACITY


class QuotaExceeded(CloudError):
    """The account may have no more of these."""

    kind = ErrorKind.QUOTA


class NotAllowed(CloudError):
    """The credentials are missing, wrong, or not enough."""

    kind = ErrorKind.AUTH


class Misconfigured(CloudError):
    """The request can never succeed as it is: an unknown image, type or network."""

    kind = ErrorKind.CONFIGURATION


class TokenReused(Misconfigured):
    """The token was used before, with another request."""


class Throttled(CloudError):
    """Too many calls: nothing was done."""

    kind = ErrorKind.THROTTLED


class OutcomeUnknown(CloudError):
    """There was no answer: it may have been done. Ask again with the same token."""


class CloudProvider(Protocol):
    """One account at one place. Safe to call from several threads and processes at once.

    Each method raises a CloudError of the narrowest class, and never anything of an SDK's. No
    method retries: the caller does, at its own pace.
    """

    def offerings(self) -> tuple[Offering, ...]:
        """What can be launched here, in the order of preference, with prices if known. May be
        kept for hours.
        """

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launches at least one and at most `request.count` instances, tagged with the request's
        cluster, pool and intent from their first moment; they may become visible later.

        `request.token` makes it safe to repeat: the same request with the same token returns the
        same instances, also those that have ended since, and launches none. Another request with
        that token raises TokenReused. A token is good for an hour at least.
        After OutcomeUnknown anything may have happened; after any other error nothing was
        launched, as far as the cloud knows.
        """

    def list(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """All instances tagged with the cluster, and with the pool unless None, in any state.

        Eventually consistent: an instance may be missing or show an older state up to 40 s after
        its launch or a change. One that has ended is listed as TERMINATED for a while or not at
        all.
        """

    def terminate(self, ids: Sequence[str]) -> None:
        """Asks for the end of instances, whatever their state; the disks go with them.

        To ask again is harmless. An id that is not known is no error: it may be gone, or be so
        fresh that the cloud does not see it yet, and is to be asked for again while it is listed.
        """
