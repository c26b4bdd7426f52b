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
    """A refusal, as EC2 words it."""

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
    """An instance. `data`: what its launch template and its launch said of it; `boots`: the hook
    `on_running` is called for it; `protected`: calls do not end it. Times are epoch
    ms; `asked_ms`: it began to end; `notice_ms`: when it is taken away, as announced at
    `noticed_ms`. `console`: what it wrote there.
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
        """Return the state, as EC2 names it."""
        if self.asked_ms is not None and now_ms >= self.asked_ms:
            is_over = now_ms >= self.asked_ms + self.ending_ms
            return "terminated" if is_over else "shutting-down"
        return "running" if now_ms >= self.running_ms else "pending"

    def is_billed(self, now_ms: int) -> bool:
        """Whether the machine takes up capacity, and is billed."""
        return self.state(now_ms) in ("pending", "running")

    @property
    def script(self) -> bytes:
        """The user data as cloud-init runs them: what is compressed is unpacked."""
        is_packed = self.user_data.startswith(b"\x1f\x8b")
        return gzip.decompress(self.user_data) if is_packed else self.user_data

    @property
    def spot_request(self) -> str:
        """The id of the request that bought it."""
        return "sir-" + self.id[-8:]

    def end(self, now_ms: int, code: str, message: str) -> None:
        """Begin to end, unless the machine has begun before."""
        if self.asked_ms is None or now_ms < self.asked_ms:
            self.asked_ms = now_ms
            self.reason = (code, message)

    def description(self, now_ms: int) -> dict[str, Any]:
        """Return the machine as DescribeInstances shows it."""
        state = self.state(now_ms)
        found: dict[str, Any] = {
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
            found |= {"SubnetId": self.subnet, "PrivateIpAddress": self.address}
        if self.is_spot:
            found |= {"InstanceLifecycle": "spot", "SpotInstanceRequestId": self.spot_request}
        reserved = self.data.get("CapacityReservationSpecification", {})
        target = reserved.get("CapacityReservationTarget", {})
        if name := target.get("CapacityReservationId"):
            found["CapacityReservationId"] = name
        if self.reason is not None:
            found["StateReason"] = dict(zip(("Code", "Message"), self.reason, strict=True))
        return found


def shown_state(name: str) -> dict[str, Any]:
    """Return a state with the number that EC2 gives it."""
    return {"Code": CODES[name], "Name": name}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as EC2 writes them."""
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
    """Return epoch ms as the serialiser takes them."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None)
