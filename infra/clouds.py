"""The clouds that a cluster can be deployed to: the registry of stacks.

A new cloud adds its line here, and its folder of that name; its program's module has a `PROGRAM`.
"""

from importlib import import_module
from typing import Final

from infra.stack_program import StackProgram

PROGRAMS: Final = {"aws": "infra.aws.program", "gcp": "infra.gcp.program"}
# Whose stack is exported where nobody says.
DEFAULT_CLOUD: Final = "aws"


def load_program(cloud: str) -> StackProgram:
    """Return the stack of a cloud, which is imported now."""
    program: StackProgram = import_module(PROGRAMS[cloud]).PROGRAM
    return program
