"""The reading of Compute Engine's list of instances. No API calls."""

from datetime import datetime
from typing import Any

from control_plane.gcp.zones import region_of
from provisioner.clouds.gcp.google_api import JsonObject
from provisioner.clouds.gcp.labels import from_labels
from provisioner.clouds.gcp.operations import last_segment
from provisioner.clouds.provider import CloudInstance, OutcomeUnknown
from provisioner.model import InstanceStatus

# TERMINATED means stopped in Compute Engine: the disk still costs money. Deleted instances are not
# listed.
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


def check_reachable(page: JsonObject, region: str) -> None:
    """Raise OutcomeUnknown if a page of a list lacks the instances of a zone in the region.

    Otherwise, the instances of that zone would count as ended. Missing zones of other regions do
    not matter.
    """
    missing = {last_segment(unreachable) for unreachable in page.get("unreachables", ())}
    for scope, content in page.get("items", {}).items():
        if content.get("warning", {}).get("code") == "UNREACHABLE":
            missing.add(last_segment(scope))
    in_region = sorted(name for name in missing if region_of(name) == region)
    if in_region:
        raise OutcomeUnknown(f"Compute Engine does not reach {', '.join(in_region)}")


def to_cloud_instance(described: dict[str, Any]) -> CloudInstance:
    """Convert an instance of Compute Engine's list. An unlisted status becomes UNKNOWN.

    The result has no notice and no end; the tags are decoded from the labels. Raises KeyError if a
    required field is missing.
    """
    return CloudInstance(
        id=described["name"],
        status=_STATUS.get(described["status"], InstanceStatus.UNKNOWN),
        launched_ms=epoch_ms(described["creationTimestamp"]),
        tags=from_labels(described.get("labels", {})),
        zone=last_segment(described["zone"]),
        uid=str(described.get("id", "")),
    )


def epoch_ms(time: str) -> int:
    """Convert a time in the format of RFC 3339 to epoch milliseconds, rounded down.

    Raises ValueError for another format.
    """
    return int(datetime.fromisoformat(time).timestamp() * 1000)
