"""The names of a team's stack: all begin with the cluster's name, so that two teams share nothing,
also where names are a project's or the world's.
"""

from dataclasses import dataclass
from typing import Final

# Functions that the tick starts when there is something for them to do.
STARTED_BY_TICK: Final = ("checkpoint_gc", "suggest")
# Service accounts besides those of the functions: of instances, of trials' storage, of what calls
# the functions, and of the build of their image.
OTHER_ACCOUNTS: Final = ("instance", "storage", "events", "build")
# Those that trials use besides their storage, where settings name data or private images.
TRIAL_ACCOUNTS: Final = ("data", "pull")
# An account's id has at most 30 characters, of which 30 - len("dc-" + 20 + "-") = 6 tell which it
# is.
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
    # Of a cluster whose functions run in another cloud: the account that launches here.
    "launcher": "launch",
}


@dataclass(frozen=True)
class Names:
    """Names of a team, which are known before there is anything that has them."""

    team: str
    project: str
    project_number: str
    region: str

    @property
    def cluster(self) -> str:
        """The cluster's id, which is also the value of the label on all of its resources."""
        return f"detcloud-{self.team}"

    @property
    def database(self) -> str:
        """The database of the state, one of several that a project has."""
        return self.cluster

    @property
    def objects(self) -> str:
        """The bucket of model code, logs and journals. A bucket's name is the world's."""
        return f"{self.cluster}-objects-{self.project_number}"

    @property
    def checkpoints(self) -> str:
        """The bucket of checkpoints."""
        return f"{self.cluster}-checkpoints-{self.project_number}"

    @property
    def repository(self) -> str:
        """The repository of the functions' images, as an image's name begins."""
        return f"{self.region}-docker.pkg.dev/{self.project}/{self.cluster}"

    @property
    def instance_prefix(self) -> str:
        """The beginning of the names of instances. No team's name has two hyphens in a row, so
        that no other team's begin so, too.
        """
        return f"{self.cluster}--vm"

    def part(self, name: str) -> str:
        """Return the name of a part: a service, a trigger, a network."""
        return f"{self.cluster}-{name.replace('_', '-')}"

    @property
    def network_path(self) -> str:
        """The path of the network, where one is made for the cluster."""
        return f"projects/{self.project}/global/networks/{self.part('network')}"

    def subnetwork_path(self, region: str) -> str:
        """Return the path of the subnetwork in a region, where one is made for the cluster."""
        return f"projects/{self.project}/regions/{region}/subnetworks/{self.part(region)}"

    def url(self, function: str) -> str:
        """Return the address of a function, which Cloud Run makes of its name."""
        return f"https://{self.part(function)}-{self.project_number}.{self.region}.run.app"

    def account_id(self, name: str) -> str:
        """Return the id of a service account: a function's, or one of OTHER_ACCOUNTS."""
        return f"dc-{self.team}-{_ACCOUNT_ENDINGS[name]}"

    def email(self, name: str) -> str:
        """Return the address of a service account."""
        return f"{self.account_id(name)}@{self.project}.iam.gserviceaccount.com"

    def member(self, name: str) -> str:
        """Return a service account as policies name it."""
        return f"serviceAccount:{self.email(name)}"

    def role_id(self, role: str) -> str:
        """Return the id of a role of the stack's own."""
        return f"detcloud_{self.team.replace('-', '_')}_{role}"

    def role(self, role: str) -> str:
        """Return the whole name of a role of the stack's own."""
        return f"projects/{self.project}/roles/{self.role_id(role)}"
