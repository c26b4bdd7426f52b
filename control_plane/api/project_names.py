"""Names of workspaces and projects in requests."""

from typing import Annotated

from pydantic import Field

from control_plane.actors.projects import NAME_CHARACTERS_MAX, find_name_problem
from control_plane.errors import invalid

# What else is wrong with one is said by the experiment that is to have it.
GroupName = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]


def check_group_name(kind: str, name: str | None) -> None:
    """Raise RequestError invalid for what can be no name of a workspace or project; None is no
    name.
    """
    if name is not None and (problem := find_name_problem(name)):
        raise invalid(kind, f"{name!a:.140} {problem}")
