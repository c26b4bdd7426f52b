"""The body of a single insert, made from the properties of a bulk insert. No API calls.

A bulk insert names machine types, disk types, accelerators and policies, because the zone is open.
A single insert needs their paths in the instance's zone or region.
"""

from collections.abc import Mapping
from typing import Any

from control_plane.gcp.zones import region_of
from provisioner.clouds.gcp.launch_request import GceSettings


def insert_body(
    name: str, zone: str, settings: GceSettings, properties: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the `Instance` of a single insert.

    Names in `properties` become paths, and paths stay. Tags of the resource manager move to
    `params`, where single inserts expect them. Other fields are the same in both.

    Args:
        name: the name of the instance.
        zone: the zone of the instance.
        settings: the pool's settings, with the project.
        properties: the `instanceProperties` of a bulk insert.
    """
    place = f"projects/{settings.project}/zones/{zone}"
    body = {
        **properties,
        "name": name,
        "machineType": _path(place, "machineTypes", properties["machineType"]),
        "disks": [_disk(place, disk) for disk in properties.get("disks", ())],
    }
    if attached := properties.get("guestAccelerators"):
        body["guestAccelerators"] = [
            {
                **item,
                "acceleratorType": _path(place, "acceleratorTypes", item["acceleratorType"]),
            }
            for item in attached
        ]
    if policies := properties.get("resourcePolicies"):
        region = f"projects/{settings.project}/regions/{region_of(zone)}"
        body["resourcePolicies"] = [_path(region, "resourcePolicies", item) for item in policies]
    if tags := body.pop("resourceManagerTags", None):
        body["params"] = {"resourceManagerTags": tags}
    return body


def _disk(place: str, disk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a disk with the type of the new disk as a path; a disk without a type is unchanged."""
    initial = disk.get("initializeParams")
    if not initial or not initial.get("diskType"):
        return disk
    kind = _path(place, "diskTypes", initial["diskType"])
    return {**disk, "initializeParams": {**initial, "diskType": kind}}


def _path(place: str, collection: str, name: str) -> str:
    """Return the path of a named resource in a place; a path is unchanged."""
    return name if "/" in name else f"{place}/{collection}/{name}"
