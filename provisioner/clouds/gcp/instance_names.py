"""Names on Google Cloud that the launch of instances needs: accounts, network and label."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from provisioner.clouds.provider import CLUSTER_TAG

# An account's id has at most 30 characters, which leaves 30 - len("dc-" + 20 + "-") = 6 characters
# for the ending.
_ACCOUNT_ENDINGS: Final = {
    "api": "api",
    "advance": "adv",
    "tick": "tick",
    "checkpoint_gc": "gc",
    "suggest": "sugg",
    "instance": "vm",
    "storage": "store",
    "events": "events",
    "build": "build",
    "data": "data",
    "pull": "pull",
    "relay": "relay",
    # The account that launches here for a cluster elsewhere.
    "launcher": "launch",
}


@dataclass(frozen=True)
class InstanceNames:
    """Names of a cluster's accounts and instances, known before the resources exist."""

    team: str
    """The team's name, from which all names are derived."""
    project: str
    """The project's id."""
    project_number: str
    """The project's number."""
    region: str
    """The region of functions, state and buckets, and of pools that name no region."""
    cluster_id: str = ""
    """The cluster's id if different from `cluster`; otherwise ""."""

    @property
    def cluster(self) -> str:
        """The cluster's name, with which the names of resources begin."""
        return f"detcloud-{self.team}"

    @property
    def label(self) -> str:
        """The value of the label of the cluster's instances: the cluster's id."""
        return self.cluster_id or self.cluster

    @property
    def instance_prefix(self) -> str:
        """The start of the names of the cluster's instances.

        The double hyphen keeps it unique, because no team's name contains two hyphens in a row.
        """
        return f"{self.cluster}--vm"

    def part(self, name: str) -> str:
        """Return the name of a service, trigger, network or other part: cluster, hyphen, name.

        Underscores of `name` become hyphens.
        """
        return f"{self.cluster}-{name.replace('_', '-')}"

    @property
    def network_path(self) -> str:
        """The path of the cluster's own network, derived from the names.

        The network exists only if the settings name no `network`.
        """
        return f"projects/{self.project}/global/networks/{self.part('network')}"

    def subnetwork_path(self, region: str) -> str:
        """Return the path of the cluster's own subnetwork in a region, derived from the names.

        The subnetwork exists only if the settings name no `network`.
        """
        return f"projects/{self.project}/regions/{region}/subnetworks/{self.part(region)}"

    def account_id(self, name: str) -> str:
        """Return the id of the service account `name`, a key of _ACCOUNT_ENDINGS.

        Raise KeyError for any other name.
        """
        return f"dc-{self.team}-{_ACCOUNT_ENDINGS[name]}"

    def email(self, name: str) -> str:
        """Return the e-mail address of the service account `name`.

        Raise KeyError for a name that the cluster does not have.
        """
        return f"{self.account_id(name)}@{self.project}.iam.gserviceaccount.com"


def remote_defaults(names: InstanceNames, regions: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of launches in a remote account, in the form of `add_deployment`.

    The service account is left out. `regions` are the regions with subnetworks.
    """
    return {
        "network": names.network_path,
        "subnetworks": {region: names.subnetwork_path(region) for region in regions},
        "tags": [names.cluster],
        "public_ip": True,
        "labels": {CLUSTER_TAG: names.label},
        # The launcher's permissions depend on the names of instances.
        "name_prefix": names.instance_prefix,
    }


def describe_remote(
    names: InstanceNames, regions: Iterable[str], *, has_launcher: bool
) -> dict[str, Any]:
    """Return the description of a remote account for `lambdas.gcp.other_pools`.

    The keys are `project`, `region`, `launcher` and `instance` (e-mail addresses) and `network`.
    The result is ready for JSON. Without `has_launcher`, `launcher` is "".
    """
    return {
        "project": names.project,
        "region": names.region,
        "launcher": names.email("launcher") if has_launcher else "",
        "instance": names.email("instance"),
        "network": remote_defaults(names, regions),
    }
