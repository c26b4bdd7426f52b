"""Permissions of a remote account on Google Cloud. Pure.

The cluster runs in another cloud or on own machines. A server on own machines has a Google account,
which acts as the service account `launcher`.

The launching function has no Google account. Google accepts an identity from the function's own
cloud, and lets the function act as the service account `launcher`. This account may launch and
delete the cluster's instances, like the tick of a cluster on Google Cloud, and nothing else.
Instances have a service account that can at most write logs.
"""

from dataclasses import dataclass
from typing import Final

from infra.gcp.names import Names
from infra.gcp.policies import PROJECT, Grant, Place, list_launch_grants
from infra.remote_accounts import Launcher

PROVIDER_ID: Final = "functions"
LOCATION: Final = "locations/global/workloadIdentityPools"
# The subject is the function's role on AWS, without the varying name of the session.
MAPPING: Final = 'google.subject=assertion.arn.extract("assumed-role/{role}/")'


@dataclass(frozen=True)
class Trust:
    """The trust of a remote account on Google Cloud in the cluster's launching function.

    Google accepts the function's identity from the other cloud, and lets the function act as the
    service account `launcher`.
    """

    names: Names
    """The cluster's names in the remote account."""
    launcher: Launcher
    """The launching function in the other cloud."""

    @property
    def pool(self) -> str:
        """The id of the workload identity pool."""
        return self.names.cluster

    @property
    def provider_path(self) -> str:
        """The path of the identity provider in the workload identity pool."""
        number = self.names.project_number
        return f"projects/{number}/{LOCATION}/{self.pool}/providers/{PROVIDER_ID}"

    @property
    def provider(self) -> str:
        """The full name of the identity provider, the audience of the function's signatures."""
        return f"//iam.googleapis.com/{self.provider_path}"

    @property
    def condition(self) -> str:
        """The condition for exchanging tokens: the caller has the launcher's role and account."""
        role = f"arn:aws:sts::{self.launcher.account}:assumed-role/{self.launcher.role}/"
        return f'assertion.arn.startsWith("{role}")'

    @property
    def has_launcher(self) -> bool:
        """Whether the account `launcher` is needed: not for a server without a named principal."""
        return bool(self.launcher.role)

    @property
    def accounts(self) -> tuple[str, ...]:
        """The service accounts of the remote account: `launcher`, if needed, and `instance`."""
        return ("launcher", "instance") if self.has_launcher else ("instance",)

    @property
    def member(self) -> str:
        """The launching function or server in the form of IAM policies.

        A function has the form principal://..., and a server serviceAccount:EMAIL or user:EMAIL.
        """
        if self.launcher.is_server:
            return self.launcher.role
        pool = f"projects/{self.names.project_number}/{LOCATION}/{self.pool}"
        return f"principal://iam.googleapis.com/{pool}/subject/{self.launcher.role}"


def list_remote_grants(
    names: Names, regions: tuple[str, ...], *, logs_instances: bool
) -> list[Grant]:
    """Return the grants to the service accounts `launcher` and `instance` of a remote account.

    `regions` are the regions with subnetworks. With `logs_instances`, instances may write to Cloud
    Logging.
    """
    logs = [Grant("instance", "write_logs", Place(PROJECT))] if logs_instances else []
    return [*list_launch_grants("launcher", names, regions), *logs]
