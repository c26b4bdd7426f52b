"""Permissions of a cluster's remote account on Google Cloud, whose functions run in another cloud:
plain data from plain names.

The function that launches has no account here. Google accepts the identity that its own cloud
vouches for, and lets it act as the service account `launcher`, which may do with instances what the
tick of a cluster on Google Cloud may, and nothing else. Instances have an account without
permissions.
"""

from dataclasses import dataclass
from typing import Final

from infra.gcp.names import Names
from infra.gcp.policies import PROJECT, Grant, Place, list_launch_grants
from infra.remote_accounts import Launcher

PROVIDER_ID: Final = "functions"
LOCATION: Final = "locations/global/workloadIdentityPools"
# The role of a function in AWS is the subject, whatever the session's name is.
MAPPING: Final = 'google.subject=assertion.arn.extract("assumed-role/{role}/")'


@dataclass(frozen=True)
class Trust:
    """The trust of a remote account in the caller that launches."""

    names: Names
    launcher: Launcher

    @property
    def pool(self) -> str:
        """The id of the workload identity pool."""
        return self.names.cluster

    @property
    def provider_path(self) -> str:
        """The path of the provider in the pool."""
        number = self.names.project_number
        return f"projects/{number}/{LOCATION}/{self.pool}/providers/{PROVIDER_ID}"

    @property
    def provider(self) -> str:
        """The name of the provider, which a signature of the caller's must be for."""
        return f"//iam.googleapis.com/{self.provider_path}"

    @property
    def condition(self) -> str:
        """The condition on who gets a token at all: that role, of that account."""
        role = f"arn:aws:sts::{self.launcher.account}:assumed-role/{self.launcher.role}/"
        return f'assertion.arn.startsWith("{role}")'

    @property
    def member(self) -> str:
        """The caller as policies name it."""
        pool = f"projects/{self.names.project_number}/{LOCATION}/{self.pool}"
        return f"principal://iam.googleapis.com/{pool}/subject/{self.launcher.role}"


def list_remote_grants(
    names: Names, regions: tuple[str, ...], *, logs_instances: bool
) -> list[Grant]:
    """Return the grants of a remote account's service accounts. With `logs_instances` agents write
    their journals to Cloud Logging.
    """
    logs = [Grant("instance", "write_logs", Place(PROJECT))] if logs_instances else []
    return [*list_launch_grants("launcher", names, regions), *logs]
