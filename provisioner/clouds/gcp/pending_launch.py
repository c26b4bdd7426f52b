"""A launch attempt with the inputs of the calls."""

from dataclasses import dataclass

from control_plane.fleet.records import IntentRow
from provisioner.clouds.gcp.google_api import GoogleApi
from provisioner.clouds.gcp.launch_request import GceSettings


@dataclass(frozen=True)
class PendingLaunch:
    """A launch attempt of a pool."""

    api: GoogleApi
    request: IntentRow
    settings: GceSettings
    """The settings of the request's pool, completed by the deployment."""
    script: bytes
    """The startup script."""
    is_id_forgotten: bool
    """Whether the attempt is so old that Compute Engine may not recognize the request's ids."""

    @property
    def text(self) -> str:
        """The number and the type of the instances, for messages."""
        return f"{self.request.count} of {self.request.offering.instance_type}"
