"""The names of the resources in a team's stack.

All names contain the team's name, so that the stacks of two teams in one project never collide.
"""

from dataclasses import dataclass
from typing import Final

from provisioner.clouds.gcp.instance_names import InstanceNames

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


@dataclass(frozen=True)
class Names(InstanceNames):
    """Names of a team's resources, known before the resources exist."""

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

    def url(self, function: str) -> str:
        """Return the URL that Cloud Run assigns to a function, derived from the names."""
        return f"https://{self.part(function)}-{self.project_number}.{self.region}.run.app"

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
