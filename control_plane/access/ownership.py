"""The rules for changing an object that a user owns.

A later rule, such as a workspace that restricts changes, adds its own reason to `find_refusal`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from control_plane.access.principals import Principal, Role
from control_plane.errors import Code, RequestError


class Action(StrEnum):
    """An action of a caller on an object; the value is the verb of the refusal."""

    CHANGE = "change"
    DELETE = "delete"
    REGISTER = "add versions to"
    UPLOAD = "upload checkpoints to"
    CONNECT = "open tunnels to"
    READ = "read"


@dataclass(frozen=True)
class OwnedObject:
    """An object with one or several users as owners."""

    name: str
    """The name in messages, such as `experiment 3`."""
    owners: tuple[str, ...]
    """The users who may change the object."""
    alternative: str = ""
    """What other users can do instead, such as `fork it`."""


FindOwned = Callable[[], Iterable[OwnedObject]]
"""Returns the objects that a request would change. May raise RequestError not_found."""


def find_refusal(caller: Principal, action: Action, owned: OwnedObject) -> str | None:
    """Return the reason why `caller` may not do `action` to `owned`. Return None if the caller may.

    Owners and admins may do everything to an object.
    """
    if caller.role is Role.ADMIN or caller.user in owned.owners:
        return None
    owners = " and ".join(owned.owners)
    allowed = " or ".join((*owned.owners, "an admin"))
    advice = f", or {owned.alternative}" if owned.alternative else ""
    return f"{owned.name} belongs to {owners}: ask {allowed} to {action} it{advice}"


def check_may_change(caller: Principal, owned: OwnedObject, action: Action = Action.CHANGE) -> None:
    """Raise RequestError forbidden if `find_refusal` returns a reason."""
    if refusal := find_refusal(caller, action, owned):
        raise RequestError(Code.FORBIDDEN, refusal)
