"""Access that a cloud grants to trials in addition to checkpoints.

A grant opens the data that the deployment names, or the registry of the trial's image. The agent
requests a grant for a trial that runs on the agent. A grant lasts at most an hour.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from control_plane.agents.storage_credentials import StorageCredentials, StorageToken

DataForm = Literal["given", "google"]
"""The form of data credentials in a spec: "given" for AWS keys, "google" for Google tokens."""


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A login at an image registry, for a single pull."""

    username: str
    password: str = field(repr=False)


class TrialGrants(Protocol):
    """An issuer of a cloud's grants to trials.

    The methods that issue grants raise OSError if the cloud does not answer.
    """

    @property
    def data_form(self) -> DataForm:
        """The form of the credentials that `issue_data_keys` issues, as in specs."""

    def gives_data_keys(self, pool: str) -> bool:
        """Return whether the training code of this pool's trials gets data credentials. Calls no
        cloud.
        """

    def issue_data_keys(self, name: str, pool: str) -> StorageCredentials | StorageToken:
        """Issue keys or a token for the training code of a trial in `pool`.

        Raises OSError if the cloud does not answer. Only called if `gives_data_keys` is true for
        the pool.

        Args:
            name: the name of the session, which the cloud shows in its audit logs.
        """

    def gives_login(self, image: str) -> bool:
        """Return whether pulling `image` needs a login that this cloud can issue. Calls no
        cloud.
        """

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        """Issue a login that can pull `image`.

        A cloud that cannot limit the login to the image's repository limits it to the configured
        repositories. Raises OSError if the cloud does not answer. Only called if `gives_login` is
        true for the image.

        Args:
            name: the name of the session, which the cloud shows in its audit logs.
        """


def grant_fields(grants: TrialGrants, spec: dict[str, Any], pool: str) -> dict[str, str]:
    """Return the fields of a spec that list the grants that the agent may request.

    `data_credentials` is set if trials of `pool` get data credentials. `registry_credentials` is
    set if the pull of an image of the spec needs a login. Return {} without grants.

    Args:
        grants: the issuer of the cluster's cloud.
        spec: the trial's spec, whose `image` maps kinds of machines to images or None.
        pool: the pool in which the trial runs.
    """
    images = (spec.get("image") or {}).values()
    may_log_in = any(image is not None and grants.gives_login(image) for image in images)
    return {
        **({"data_credentials": grants.data_form} if grants.gives_data_keys(pool) else {}),
        **({"registry_credentials": "given"} if may_log_in else {}),
    }
