"""The names of the resources in a team's stack.

All names contain the team's name, so that the stacks of two teams in one project never collide.
"""

from dataclasses import dataclass
from typing import Final

# Functions that the tick starts on demand.
STARTED_BY_TICK: Final = ("checkpoint_gc", "suggest")
# Service accounts besides the functions' accounts: of instances, of trials' storage, of the events
# that call functions, and of the build of images.
OTHER_ACCOUNTS: Final = ("instance", "storage", "events", "build")
# Service accounts for trials' data and private images, if the settings name any.
TRIAL_ACCOUNTS: Final = ("data", "pull")
# The service, the service account and the secret of the relay of tunnels, unless the settings
# refuse a relay.
RELAY: Final = "relay"
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
    # The account that launches here for a cluster in another cloud.
    "launcher": "launch",
}


@dataclass(frozen=True)
class Names:
    """Names of a team's resources, known before the resources exist."""

    team: str
    """The team's name, from which all names are derived."""
    project: str
    """The project's id."""
    project_number: str
    """The project's number."""
    region: str
    """The region of functions, state and buckets."""

    @property
    def cluster(self) -> str:
        """The cluster's id, which is also the value of the label on all the cluster's resources."""
        return f"detcloud-{self.team}"

    @property
    def database(self) -> str:
        """The name of the Firestore database with the cluster's state."""
        return self.cluster

    @property
    def objects(self) -> str:
        """The name of the bucket of model code, logs and journals; includes the project's number.

        Names of buckets must be unique worldwide.
        """
        return f"{self.cluster}-objects-{self.project_number}"

    @property
    def checkpoints(self) -> str:
        """The name of the bucket of checkpoints."""
        return f"{self.cluster}-checkpoints-{self.project_number}"

    @property
    def state_copy(self) -> str:
        """The name of the bucket of exports of the state, in another region."""
        return f"{self.cluster}-state-{self.project_number}-copy"

    def copy(self, bucket: str) -> str:
        """Return the name of the copy of a bucket, `objects` or `checkpoints`."""
        return f"{self.cluster}-{bucket}-{self.project_number}-copy"

    @property
    def transfer_agent(self) -> str:
        """The member that Storage Transfer Service acts as in this project, in IAM's form."""
        agent = f"project-{self.project_number}@storage-transfer-service.iam.gserviceaccount.com"
        return f"serviceAccount:{agent}"

    @property
    def repository(self) -> str:
        """The address of the repository of images, with which full names of images begin."""
        return f"{self.region}-docker.pkg.dev/{self.project}/{self.cluster}"

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

    def url(self, function: str) -> str:
        """Return the URL that Cloud Run assigns to a function, derived from the names."""
        return f"https://{self.part(function)}-{self.project_number}.{self.region}.run.app"

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

    def member(self, name: str) -> str:
        """Return the service account `name` in the form of IAM policies, serviceAccount:EMAIL.

        Raise KeyError for a name that the cluster does not have.
        """
        return f"serviceAccount:{self.email(name)}"

    def role_id(self, role: str) -> str:
        """Return the id of the team's custom role `role`."""
        return f"detcloud_{self.team.replace('-', '_')}_{role}"

    def role(self, role: str) -> str:
        """Return the full name of the team's custom role `role`, projects/PROJECT/roles/ID."""
        return f"projects/{self.project}/roles/{self.role_id(role)}"
