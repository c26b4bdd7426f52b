"""Access that a cloud gives a trial besides its checkpoints: to data that the deployment names, and
to the registry that has its image.

Either is asked for by the agent that runs the trial, lasts an hour at most, and has nothing to do
with the keys of checkpoints.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from control_plane.agents.storage_credentials import StorageCredentials, StorageToken

DataForm = Literal["given", "google"]
"""What the code of trials gets: keys of AWS, or tokens of a service account of Google."""


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A login at a registry, good for the pull that it was asked for."""

    username: str
    password: str = field(repr=False)


class TrialGrants(Protocol):
    """Gives trials access to what is a cloud's. Issuing raises OSError if the cloud does not
    answer.
    """

    @property
    def data_form(self) -> DataForm:
        """The form of what `issue_data_keys` issues, as specs name it."""

    def gives_data_keys(self, pool: str) -> bool:
        """Whether the code of a pool's trials gets keys."""

    def issue_data_keys(self, name: str, pool: str) -> StorageCredentials | StorageToken:
        """Issue keys or a token for the code of a pool's trial, for a session called `name`."""

    def gives_login(self, image: str) -> bool:
        """Whether the image is in a registry that is logged in to."""

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        """Issue a login that pulls the image and nothing else, for a session called `name`."""


def grant_fields(grants: TrialGrants, spec: dict[str, Any], pool: str) -> dict[str, str]:
    """The fields of a spec that tell the agent what it may ask for."""
    images = (spec.get("image") or {}).values()
    may_log_in = any(image is not None and grants.gives_login(image) for image in images)
    return {
        **({"data_credentials": grants.data_form} if grants.gives_data_keys(pool) else {}),
        **({"registry_credentials": "given"} if may_log_in else {}),
    }
