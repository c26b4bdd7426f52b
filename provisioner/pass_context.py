"""The dependencies of reconciliation passes, and the record of a pass."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from control_plane.fleet.notices import InstanceNotice
from provisioner.clouds.provider import CloudError, CloudFactory
from provisioner.pools import Pools


@dataclass(frozen=True, slots=True)
class PassServices:
    """The dependencies of the passes over all pools of a cluster."""

    pools: Pools
    cloud_factory: CloudFactory
    cluster: str
    """The cluster's id, a tag of each instance."""
    clock: Callable[[], int]
    """Returns the time in epoch milliseconds."""
    random: Random
    """The source of the jitter of back-offs."""
    notices: Callable[[], Iterable[InstanceNotice]]
    """Returns the stored notices of agents and cloud events.

    A pass calls the function only if the pool has instances, in the cloud's list or in stored rows.
    """


@dataclass(slots=True)
class PassRecord:
    """The decisions and errors of a running pass."""

    started_ms: int
    reasons: list[str] = field(default_factory=list)
    """The decisions and errors, as texts for users."""
    trouble: str = ""
    """The kind and message of the last cloud error, for the fleet's row; "" without an error."""
    has_launch_under_way: bool = False
    """Whether the cloud has accepted a launch and not finished the launch."""

    def add_trouble(self, error: CloudError) -> None:
        """Set `trouble` to a cloud error, and append the error to `reasons`; write no row."""
        self.trouble = f"{error.kind}: {error}"
        self.reasons.append(f"the cloud request failed: {error}")
