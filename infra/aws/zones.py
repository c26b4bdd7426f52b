"""Zones for the instances of a cluster's pools: those that offer one of the pools' types."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import botocore.exceptions as sdk

from infra.aws.settings import ZONES_MAX

PAGE_SIZE = 1000


def find_zones(api: Any, region: str, types: Collection[str]) -> tuple[str, ...]:
    """Find the zones of the region that offer most of the types, at most ZONES_MAX, by name.

    `api` is a client of EC2. Raises the SDK's errors.
    """
    counts: dict[str, int] = {}
    for offering in _read_offerings(api, types):
        zone = str(offering["Location"])
        # Zones of other kinds, such as local ones, have names of another form.
        if zone[:-1] == region and zone[-1].isalpha():
            counts[zone] = counts.get(zone, 0) + 1
    best = sorted(counts, key=lambda zone: (-counts[zone], zone))[:ZONES_MAX]
    return tuple(sorted(best))


def default_zones(region: str, types: Collection[str]) -> tuple[tuple[str, ...], str]:
    """The zones if the settings name none, and why there are none of them, "" if they are known or
    nobody could ask.
    """
    if not types:
        return (), ""
    from detcloud.shared.aws import new_session

    try:
        zones = find_zones(new_session().create_client("ec2", region), region, types)
    except sdk.NoCredentialsError:
        return (), ""
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        return (), f"EC2 does not say which zones offer {', '.join(sorted(types))}: {error}"
    return zones, "" if zones else f"no zone of {region} offers a type of the pools"


def _read_offerings(api: Any, types: Collection[str]) -> Iterable[Mapping[str, Any]]:
    request: dict[str, Any] = {
        "LocationType": "availability-zone",
        "Filters": [{"Name": "instance-type", "Values": sorted(types)}],
        "MaxResults": PAGE_SIZE,
    }
    while True:
        page = api.describe_instance_type_offerings(**request)
        yield from page["InstanceTypeOfferings"]
        if not page.get("NextToken"):
            return
        request["NextToken"] = page["NextToken"]
