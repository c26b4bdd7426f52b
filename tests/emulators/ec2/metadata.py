"""The metadata service, version 2, of a machine."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.emulators.ec2.machine import Machine, moment
from tests.emulators.ec2.region import ACCOUNT, Region

TTL = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "x-aws-ec2-metadata-token"
TTL_SECONDS_MAX = 21_600


class Reply(NamedTuple):
    """A reply of the metadata service."""

    status: int
    body: bytes = b""
    kind: str = "text/plain"


def answer(
    region: Region, machine: Machine, method: str, path: str, headers: Mapping[str, str]
) -> Reply:
    """Answer a call of `path`, for example latest/meta-data/instance-id. `headers` have lowercase
    names.
    """
    options = machine.data.get("MetadataOptions", {})
    if options.get("HttpEndpoint") == "disabled" or "x-forwarded-for" in headers:
        return Reply(403)
    if path == "latest/api/token":
        return _token(region, machine, headers) if method == "PUT" else Reply(405)
    name, until_ms = region.metadata_tokens.get(headers.get(TOKEN, ""), ("", 0))
    may = name == machine.id and region.clock() < until_ms
    if not may and (TOKEN in headers or options.get("HttpTokens") != "optional"):
        return Reply(401)
    read = _pages(region, machine).get(path.rstrip("/"))
    text = None if read is None else read()
    if text is None:
        return Reply(404)
    return Reply(200, text.encode() if isinstance(text, str) else text)


def _token(region: Region, machine: Machine, headers: Mapping[str, str]) -> Reply:
    seconds = headers.get(TTL, "")
    if not seconds.isdecimal() or not 1 <= int(seconds) <= TTL_SECONDS_MAX:
        return Reply(400)
    token = f"token-{machine.id}-{region.number()}"
    region.metadata_tokens[token] = (machine.id, region.clock() + int(seconds) * 1000)
    return Reply(200, token.encode())


def _pages(region: Region, machine: Machine) -> Mapping[str, Callable[[], str | bytes | None]]:
    data = "latest/meta-data"
    role = machine.data.get("IamInstanceProfile", {}).get("Arn", "").rpartition("/")[2]
    credentials = f"{data}/iam/security-credentials"
    pages: dict[str, Callable[[], str | bytes | None]] = {
        "latest/user-data": lambda: machine.user_data or None,
        "latest/dynamic/instance-identity/document": lambda: _identity(region, machine),
        f"{data}/instance-id": lambda: machine.id,
        f"{data}/instance-type": lambda: machine.instance_type,
        f"{data}/ami-id": lambda: machine.image,
        f"{data}/local-ipv4": lambda: machine.address,
        f"{data}/placement/availability-zone": lambda: machine.zone,
        f"{data}/placement/region": lambda: region.name,
        f"{data}/instance-life-cycle": lambda: "spot" if machine.is_spot else "on-demand",
        f"{data}/spot/instance-action": lambda: _action(machine),
        f"{data}/spot/termination-time": lambda: _time(machine.notice_ms, machine.noticed_ms),
        f"{data}/events/recommendations/rebalance": lambda: _advice(machine),
    }
    if role:
        pages[credentials] = lambda: role
        pages[f"{credentials}/{role}"] = lambda: _credentials(region, machine)
    if machine.data.get("MetadataOptions", {}).get("InstanceMetadataTags") == "enabled":
        pages[f"{data}/tags/instance"] = lambda: "\n".join(machine.tags)
        for key, value in machine.tags.items():
            pages[f"{data}/tags/instance/{key}"] = lambda value=value: value  # type: ignore[misc]
    return pages


def _action(machine: Machine) -> str | None:
    time = _time(machine.notice_ms, machine.noticed_ms)
    return None if time is None else json.dumps({"action": "terminate", "time": time})


def _advice(machine: Machine) -> str | None:
    time = _time(machine.advised_ms, machine.advised_ms)
    return None if time is None else json.dumps({"noticeTime": time})


def _time(time_ms: int | None, known_ms: int | None) -> str | None:
    """Return a time in EC2's format, in whole seconds, or None if a time is unknown."""
    if time_ms is None or known_ms is None:
        return None
    return moment(time_ms).strftime("%Y-%m-%dT%H:%M:%SZ")


def _identity(region: Region, machine: Machine) -> str:
    document: dict[str, Any] = {
        "accountId": ACCOUNT,
        "availabilityZone": machine.zone,
        "imageId": machine.image,
        "instanceId": machine.id,
        "instanceType": machine.instance_type,
        "pendingTime": _time(machine.launched_ms, machine.launched_ms),
        "privateIp": machine.address,
        "region": region.name,
        "version": "2017-09-30",
    }
    return json.dumps(document)


def _credentials(region: Region, machine: Machine) -> str:
    now_ms = region.clock()
    credentials = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "LastUpdated": _time(now_ms, now_ms),
        **region.keys(machine),
        "Expiration": _time(now_ms + 6 * 3_600_000, now_ms),
    }
    return json.dumps(credentials)
