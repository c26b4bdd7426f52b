"""The setting `otherClouds` of a stack: what its cluster has in other clouds for pools there."""

import json
from collections.abc import Mapping
from typing import Any

from control_plane.config.pools import ClusterConfig
from infra.clouds import OTHER_SIDES, open_other_side
from infra.findings import Finding
from infra.other_sides import Launcher, OtherSide
from infra.stack_program import SIDES, DrainReport, DroppedSide, Progress


def parse_other_clouds(text: str, own: str) -> dict[str, Any]:
    """Parse the setting of a stack in the cloud `own`. Raises ValueError with what was expected."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    others = [cloud for cloud in OTHER_SIDES if cloud != own]
    if not isinstance(given, dict) or not set(given) <= set(others):
        raise ValueError(f"a map of what there is in {' or '.join(others)}")
    return given


def find_side_problems(given: Mapping[str, Any], launcher: Launcher) -> list[str]:
    """Return what is wrong with the description of a side, a line each."""
    problems = []
    for cloud, value in given.items():
        try:
            open_other_side(cloud, value, launcher)
        except ValueError as error:
            place = f"detcloud:otherClouds: {cloud} is {json.dumps(value)[:80]}"
            problems.append(f"{place}: expected {error}")
    return problems


def open_sides(given: Mapping[str, Any], launcher: Launcher) -> dict[str, OtherSide]:
    """Return the sides that the setting describes. Raises ValueError."""
    return {cloud: open_other_side(cloud, it, launcher) for cloud, it in given.items()}


def describe_sides(sides: Mapping[str, OtherSide]) -> str:
    """Return what functions are told of the sides, "" for none."""
    described = {cloud: side.variables() for cloud, side in sides.items()}
    return json.dumps(described, separators=(",", ":")) if described else ""


def describe_deployed(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the output of a stack that has the setting, none without one."""
    return {SIDES: json.dumps(given, sort_keys=True)} if given else {}


def render_commands(sides: Mapping[str, OtherSide], cluster: ClusterConfig) -> str:
    """Return the scripts that make the sides, "" for none."""
    return "\n".join(side.commands(cluster) for side in sides.values())


def check_sides(sides: Mapping[str, OtherSide], cluster: ClusterConfig) -> list[Finding]:
    """Return what there is to say of the sides."""
    return [finding for side in sides.values() for finding in side.find_findings(cluster)]


def render_removals(sides: Mapping[str, OtherSide]) -> str:
    """Return the scripts that remove the sides, "" for none."""
    return "\n".join(side.removal_commands() for side in sides.values())


def list_side_leftovers(sides: Mapping[str, OtherSide]) -> list[str]:
    """Return what is left of the sides, a line each."""
    return [line for side in sides.values() for line in side.find_leftovers()]


def list_dropped_sides(
    before: str, own: str, launcher: Launcher, present: Mapping[str, OtherSide]
) -> list[DroppedSide]:
    """Return the sides of a former text of the setting that are at none of the present places, as
    far as anything is left there. Raises DrainFailed where nobody can tell.
    """
    former = open_sides(parse_other_clouds(before, own), launcher)
    places = {side.place for side in present.values()}
    found = []
    for cloud, side in former.items():
        if side.place in places:
            continue
        instances, leftovers = side.list_instances(), side.find_leftovers()
        if leftovers:
            removal = side.removal_commands()
            found.append(
                DroppedSide(cloud, side.place, tuple(instances), tuple(leftovers), removal)
            )
    return found


def drain_sides(
    sides: Mapping[str, OtherSide], report: DrainReport, progress: Progress
) -> DrainReport:
    """End what the cluster made by itself in its sides, whose launcher is stopped by now, and add
    it to the report. Raises DrainFailed.
    """
    reports = [report, *(side.drain(progress) for side in sides.values())]
    return DrainReport(sum(it.instances for it in reports), sum(it.templates for it in reports))
