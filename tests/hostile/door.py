"""A route of the API that accepts a body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from control_plane.access.principals import Role


@dataclass(frozen=True)
class Door:
    """A route that accepts a body.

    The role that may use the route, the values for `{}` in the path, and a valid body. `free`:
    fields that accept any JSON.
    """

    role: Role
    body: Any
    path: str
    free: tuple[str, ...] = ()
