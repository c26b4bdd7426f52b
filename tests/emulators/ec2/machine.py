"""An instance of the simulated EC2, from its launch to its end."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}
STATUS = {
    "RequestLimitExceeded": 503,
    "Unavailable": 503,
    "InternalError": 500,
    "InsufficientInstanceCapacity": 500,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
    "DryRunOperation": 412,
}


class Ec2Error(Exception):
    """A refusal in EC2's format."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return STATUS.get(self.code, 400)


@dataclass
class Machine:
    """An instance. Times are epoch ms.

    `data`: settings from the launch template and the launch. `boots`: whether the hook `on_running`
    is called. `protected`: whether calls cannot terminate the machine. `asked_ms`: start of the
    shutdown. `notice_ms`: time of the interruption that was announced at `noticed_ms`. `console`:
    console output.
    """

    id: str
    instance_type: str
    zone: str
    subnet: str
    image: str
    is_spot: bool
    tags: dict[str, str]
    volume_tags: Mapping[str, str]
    data: Mapping[str, Any]
    user_data: bytes
    token: str
    launched_ms: int
    visible_ms: int
    running_ms: int
    ending_ms: int
    address: str
    boots: bool = True
    protected: bool = False
    asked_ms: int | None = None
    reason: tuple[str, str] | None = None
    noticed_ms: int | None = None
    notice_ms: int | None = None
    advised_ms: int | None = None
    heard: set[str] = field(default_factory=set)
    console: str = ""

    def state(self, now_ms: int) -> str:
        """Return EC2's name of the state."""
        if self.asked_ms is not None and now_ms >= self.asked_ms:
            is_over = now_ms >= self.asked_ms + self.ending_ms
            return "terminated" if is_over else "shutting-down"
        return "running" if now_ms >= self.running_ms else "pending"

    def is_billed(self, now_ms: int) -> bool:
        """Whether the machine takes up capacity, and is billed."""
        return self.state(now_ms) in ("pending", "running")

    @property
    def script(self) -> bytes:
        """Return the decompressed user data, like cloud-init."""
        is_packed = self.user_data.startswith(b"\x1f\x8b")
        return gzip.decompress(self.user_data) if is_packed else self.user_data

    @property
    def spot_request(self) -> str:
        """The id of the machine's spot request."""
        return "sir-" + self.id[-8:]

    def end(self, now_ms: int, code: str, message: str) -> None:
        """Begin to end, unless the machine has begun before."""
        if self.asked_ms is None or now_ms < self.asked_ms:
            self.asked_ms = now_ms
            self.reason = (code, message)

    def description(self, now_ms: int) -> dict[str, Any]:
        """Return the machine in the format of DescribeInstances."""
        state = self.state(now_ms)
        fields: dict[str, Any] = {
            "InstanceId": self.id,
            "ImageId": self.image,
            "InstanceType": self.instance_type,
            "State": shown_state(state),
            "ClientToken": self.token,
            "LaunchTime": moment(self.launched_ms),
            "Placement": {"AvailabilityZone": self.zone, "Tenancy": "default"},
            "Tags": tag_list(self.tags),
            "MetadataOptions": {"State": "applied", **self.data.get("MetadataOptions", {})},
        }
        if state != "terminated":
            fields |= {"SubnetId": self.subnet, "PrivateIpAddress": self.address}
        if self.is_spot:
            fields |= {"InstanceLifecycle": "spot", "SpotInstanceRequestId": self.spot_request}
        reserved = self.data.get("CapacityReservationSpecification", {})
        target = reserved.get("CapacityReservationTarget", {})
        if name := target.get("CapacityReservationId"):
            fields["CapacityReservationId"] = name
        if self.reason is not None:
            fields["StateReason"] = dict(zip(("Code", "Message"), self.reason, strict=True))
        return fields


def shown_state(name: str) -> dict[str, Any]:
    """Return a state with EC2's number."""
    return {"Code": CODES[name], "Name": name}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in EC2's format."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tags_for(kind: str, specifications: list[dict[str, Any]] | None) -> dict[str, str]:
    """The tags that a request gives to resources of a kind."""
    return {
        tag["Key"]: tag.get("Value", "")
        for given in specifications or []
        if given["ResourceType"] == kind
        for tag in given["Tags"]
    }


def moment(time_ms: int) -> datetime:
    """Return epoch ms as a datetime for the serialiser."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None)
