"""The setting `otherClouds` of a stack: what its cluster has in other clouds for pools there."""

import json
from collections.abc import Mapping
from typing import Any

from control_plane.config.pools import ClusterConfig
from infra.clouds import OTHER_SIDES, open_other_side
from infra.findings import Finding
from infra.other_sides import Launcher, OtherSide
from infra.stack_program import DrainReport, Progress


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


def render_commands(sides: Mapping[str, OtherSide], cluster: ClusterConfig) -> str:
    """Return the scripts that make the sides, "" for none."""
    return "\n".join(side.commands(cluster) for side in sides.values())


def check_sides(sides: Mapping[str, OtherSide], cluster: ClusterConfig) -> list[Finding]:
    """Return what there is to say of the sides."""
    return [finding for side in sides.values() for finding in side.find_findings(cluster)]


def drain_sides(
    sides: Mapping[str, OtherSide], report: DrainReport, progress: Progress
) -> DrainReport:
    """End the instances of the sides, whose launcher is stopped by now, and add them to the report.
    Raises DrainFailed.
    """
    elsewhere = sum(side.end_instances(progress) for side in sides.values())
    return DrainReport(report.instances + elsewhere, report.templates)
