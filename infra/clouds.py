"""The clouds that a cluster can be deployed to: the registry of stacks.

A new cloud adds its line here, and its folder of that name; its program's module has a `PROGRAM`.
One in which clusters of other clouds can have pools has a second line: the module of its side.
"""

from importlib import import_module
from typing import Any, Final

from infra.other_sides import Launcher, OtherSide
from infra.stack_program import StackProgram

PROGRAMS: Final = {"aws": "infra.aws.program", "gcp": "infra.gcp.program"}
OTHER_SIDES: Final = {"aws": "infra.aws.other_side", "gcp": "infra.gcp.other_side"}
# Whose stack is exported where nobody says.
DEFAULT_CLOUD: Final = "aws"


def load_program(cloud: str) -> StackProgram:
    """Return the stack of a cloud, which is imported now."""
    program: StackProgram = import_module(PROGRAMS[cloud]).PROGRAM
    return program


def open_other_side(cloud: str, value: object, launcher: Launcher) -> OtherSide:
    """Return the side in a cloud of OTHER_SIDES that a setting's value describes. Raises ValueError
    with what was expected.
    """
    module: Any = import_module(OTHER_SIDES[cloud])
    side: OtherSide = module.open_side(value, launcher)
    return side
