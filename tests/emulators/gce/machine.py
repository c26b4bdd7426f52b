"""An instance of the simulated Compute Engine, from its insert to its end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

# Compute Engine writes times with the offset of California.
_PACIFIC = timezone(timedelta(hours=-8))


class GceError(Exception):
    """A refusal in Compute Engine's format."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def content(self) -> dict[str, Any]:
        """The content of the answer."""
        error = {"reason": self.reason, "message": self.message, "domain": "global"}
        return {"error": {"code": self.status, "message": self.message, "errors": [error]}}


@dataclass
class Machine:
    """An instance. Times are epoch ms.

    `properties`: properties of the insert. `boots`: whether the hook `on_running` is called.
    `protected`: whether calls cannot delete the machine. `asked_ms`: start of the shutdown.
    `deleted`: whether the machine is deleted after the shutdown, or stays as terminated. `console`:
    output of the serial port.
    """

    name: str
    id: str
    zone: str
    properties: Mapping[str, Any]
    inserted_ms: int
    visible_ms: int
    staging_ms: int
    running_ms: int
    ending_ms: int
    boots: bool = True
    protected: bool = False
    asked_ms: int | None = None
    deleted: bool = False
    preempted_ms: int | None = None
    heard: set[str] = field(default_factory=set)
    console: str = ""

    @property
    def machine_type(self) -> str:
        """The name of the machine type."""
        return str(self.properties["machineType"])

    @property
    def is_spot(self) -> bool:
        """Whether the machine is bought on the spot market."""
        return bool(self.properties.get("scheduling", {}).get("provisioningModel") == "SPOT")

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels."""
        labels: Mapping[str, str] = self.properties.get("labels", {})
        return labels

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata items of the instance, for example `startup-script`."""
        items = self.properties.get("metadata", {}).get("items", ())
        return {item["key"]: item["value"] for item in items}

    def state(self, now_ms: int) -> str:
        """Return Compute Engine's name of the status, or GONE for a deleted machine."""
        if self.asked_ms is not None and now_ms >= self.asked_ms:
            if now_ms < self.asked_ms + self.ending_ms:
                return "STOPPING"
            return "GONE" if self.deleted else "TERMINATED"
        if now_ms >= self.running_ms:
            return "RUNNING"
        return "STAGING" if now_ms >= self.staging_ms else "PROVISIONING"

    def is_billed(self, now_ms: int) -> bool:
        """Whether the machine takes up capacity, and is billed."""
        return self.state(now_ms) in ("PROVISIONING", "STAGING", "RUNNING", "STOPPING")

    def end(self, now_ms: int, ending_ms: int, *, delete: bool) -> None:
        """Begin the shutdown unless a shutdown began before. `delete` also applies to a stopped
        machine.
        """
        if self.asked_ms is None or now_ms < self.asked_ms:
            self.asked_ms, self.ending_ms = now_ms, ending_ms
        self.deleted = self.deleted or delete

    def description(self, now_ms: int, url: str) -> dict[str, Any]:
        """Return the machine in the API's format."""
        zone_url = f"{url}/zones/{self.zone}"
        scheduling = {"automaticRestart": True, **self.properties.get("scheduling", {})}
        return {
            "kind": "compute#instance",
            "id": self.id,
            "name": self.name,
            "zone": zone_url,
            "machineType": f"{zone_url}/machineTypes/{self.machine_type}",
            "status": self.state(now_ms),
            "creationTimestamp": moment(self.inserted_ms),
            "labels": dict(self.labels),
            "metadata": self.properties.get("metadata", {}),
            "scheduling": {**scheduling, "preemptible": self.is_spot},
            "selfLink": f"{zone_url}/instances/{self.name}",
        }


def moment(time_ms: int) -> str:
    """Return epoch ms as the API writes times."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(_PACIFIC)
    return time.isoformat(timespec="milliseconds")
