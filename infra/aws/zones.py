"""Chooses zones that offer the instance types of a cluster's pools."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import botocore.exceptions as sdk

from infra.aws.settings import ZONES_MAX

PAGE_SIZE = 1000


def find_zones(api: Any, region: str, types: Collection[str]) -> tuple[str, ...]:
    """Return the zones of the region that offer at least one of the types, sorted by name.

    Of more than ZONES_MAX zones, keep those with the largest number of offered types. Local and
    other special zones are left out. Return () if no zone offers a type. `api` is an EC2 client.
    Raise the SDK's errors.
    """
    counts: dict[str, int] = {}
    for offering in _read_offerings(api, types):
        zone = str(offering["Location"])
        # The names of local and other special zones have another form.
        if zone[:-1] == region and zone[-1].isalpha():
            counts[zone] = counts.get(zone, 0) + 1
    best = sorted(counts, key=lambda zone: (-counts[zone], zone))[:ZONES_MAX]
    return tuple(sorted(best))


def default_zones(region: str, types: Collection[str]) -> tuple[tuple[str, ...], str]:
    """Return the zones that offer the types, and a text of why the zones are unknown.

    The text is "" if zones were found, and also without types or credentials. If EC2 refuses, or
    no zone offers a type, the zones are () and the text says why.
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
    """Yield EC2's entries of a type and a zone for all types. Raise the SDK's errors."""
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
