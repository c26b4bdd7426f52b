"""Names of workspaces and projects in requests."""

from typing import Annotated

from pydantic import Field

from control_plane.actors.projects import NAME_CHARACTERS_MAX, find_name_problem
from control_plane.errors import invalid

# The experiment that gets the name checks the other rules for names.
GroupName = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]


def check_group_name(kind: str, name: str | None) -> None:
    """Check the name of a workspace or project. None passes.

    Args:
        kind: `workspace` or `project`, the path of the error.
        name: the name.

    Raises:
        RequestError: invalid, for a name that is empty, too long, begins or ends with a space, or
            has a character that names must not have.
    """
    if name is not None and (problem := find_name_problem(name)):
        raise invalid(kind, f"{name!a:.140} {problem}")
