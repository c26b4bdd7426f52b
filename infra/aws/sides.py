"""The setting of what a cluster on AWS has in other clouds, for its pools there. Who launches there
is the role of the tick.
"""

import json
from collections.abc import Mapping
from typing import Any

from infra.aws.names import Names
from infra.clouds import OTHER_SIDES, open_other_side
from infra.other_sides import Launcher, OtherSide


def parse_other_clouds(text: str) -> dict[str, Any]:
    """Parse the setting. Raises ValueError with what was expected."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not set(given) <= set(OTHER_SIDES):
        raise ValueError(f"a map of what there is in {' or '.join(OTHER_SIDES)}")
    return given


def find_side_problems(names: Names, given: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the description of a side, a line each."""
    problems = []
    for cloud, value in given.items():
        try:
            open_other_side(cloud, value, launcher_of(names))
        except ValueError as error:
            place = f"detcloud:otherClouds: {cloud} is {json.dumps(value)[:80]}"
            problems.append(f"{place}: expected {error}")
    return problems


def open_sides(names: Names, given: Mapping[str, Any]) -> dict[str, OtherSide]:
    """Return the sides that the setting describes. Raises ValueError."""
    launcher = launcher_of(names)
    return {cloud: open_other_side(cloud, it, launcher) for cloud, it in given.items()}


def describe_sides(sides: Mapping[str, OtherSide]) -> str:
    """Return what functions are told of the sides, "" for none."""
    described = {cloud: side.variables() for cloud, side in sides.items()}
    return json.dumps(described, separators=(",", ":")) if described else ""


def launcher_of(names: Names) -> Launcher:
    """Return who launches for a cluster on AWS."""
    return Launcher("aws", names.account, names.team, names.role("tick"))
