"""The custom role with the minimal permissions for deploying a team's stack.

The role covers creating, reading, changing and deleting each type of resource in a stack, and the
calls of `check`, `destroy`, `rollback` and `verify`. `infra/gcp/deployer_role.yaml` is the role for
`gcloud iam roles create --file`; `python -m infra.gcp.deployer` regenerates the file. `detcloud
deploy policy gcp` prints the role.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml

from infra.gcp.policies import KEY_ROLE, key_members
from infra.gcp.settings import Settings

ROLE_FILE: Final = Path(__file__).with_name("deployer_role.yaml")

# The permissions that each type of resource needs, as SERVICE.COLLECTION: VERB VERB.
_CRUD: Final = "create delete get update"
_PROJECT_POLICY: Final = "resourcemanager.projects: get getIamPolicy setIamPolicy"
_NETWORK_OPERATIONS: Final = (
    "compute.globalOperations: get",
    "compute.regionOperations: get",
)
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "gcp:artifactregistry/repository:Repository": (f"artifactregistry.repositories: {_CRUD}",),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
        "artifactregistry.repositories: getIamPolicy setIamPolicy",
    ),
    # Needed on the billing account, so the project's role omits these permissions.
    "gcp:billing/budget:Budget": (f"billing.budgets: {_CRUD}",),
    "gcp:cloudrunv2/service:Service": (
        f"run.services: {_CRUD}",
        "run.operations: get",
        "iam.serviceAccounts: actAs",
        # Cloud Run checks that the deployer may pull the image.
        "artifactregistry.repositories: downloadArtifacts get",
    ),
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": (
        "run.services: getIamPolicy setIamPolicy",
    ),
    "gcp:cloudscheduler/job:Job": (
        f"cloudscheduler.jobs: {_CRUD} enable pause",
        "iam.serviceAccounts: actAs",
    ),
    "gcp:compute/firewall:Firewall": (
        f"compute.firewalls: {_CRUD}",
        "compute.networks: updatePolicy",
        *_NETWORK_OPERATIONS,
    ),
    "gcp:compute/network:Network": (f"compute.networks: {_CRUD}", *_NETWORK_OPERATIONS),
    "gcp:compute/router:Router": (
        f"compute.routers: {_CRUD}",
        "compute.networks: updatePolicy",
        *_NETWORK_OPERATIONS,
    ),
    "gcp:compute/routerNat:RouterNat": ("compute.routers: get update", *_NETWORK_OPERATIONS),
    "gcp:compute/subnetwork:Subnetwork": (
        f"compute.subnetworks: {_CRUD}",
        "compute.networks: updatePolicy",
        *_NETWORK_OPERATIONS,
    ),
    "gcp:compute/subnetworkIAMMember:SubnetworkIAMMember": (
        "compute.subnetworks: getIamPolicy setIamPolicy",
    ),
    "gcp:eventarc/trigger:Trigger": (
        f"eventarc.triggers: {_CRUD}",
        "eventarc.operations: get",
        "iam.serviceAccounts: actAs",
    ),
    "gcp:firestore/backupSchedule:BackupSchedule": (
        "datastore.backupSchedules: create delete get list update",
    ),
    "gcp:firestore/database:Database": (
        "datastore.databases: create delete getMetadata list update",
        "datastore.operations: get",
    ),
    "gcp:firestore/field:Field": (
        "datastore.indexes: get list update",
        "datastore.operations: get",
    ),
    "gcp:firestore/index:Index": (
        "datastore.indexes: create delete get list",
        "datastore.operations: get",
    ),
    "gcp:monitoring/alertPolicy:AlertPolicy": (
        f"monitoring.alertPolicies: {_CRUD}",
        # For alarms with a condition on log lines.
        f"logging.notificationRules: {_CRUD} list",
    ),
    "gcp:monitoring/dashboard:Dashboard": (f"monitoring.dashboards: {_CRUD}",),
    "gcp:monitoring/notificationChannel:NotificationChannel": (
        f"monitoring.notificationChannels: {_CRUD}",
    ),
    "gcp:projects/iAMCustomRole:IAMCustomRole": (f"iam.roles: {_CRUD} undelete",),
    "gcp:projects/iAMMember:IAMMember": (_PROJECT_POLICY,),
    "gcp:secretmanager/secret:Secret": (f"secretmanager.secrets: {_CRUD}",),
    "gcp:secretmanager/secretIamMember:SecretIamMember": (
        "secretmanager.secrets: getIamPolicy setIamPolicy",
    ),
    "gcp:secretmanager/secretVersion:SecretVersion": (
        "secretmanager.versions: access add destroy disable enable get list",
    ),
    "gcp:serviceaccount/account:Account": (f"iam.serviceAccounts: {_CRUD}",),
    "gcp:serviceaccount/iAMMember:IAMMember": ("iam.serviceAccounts: getIamPolicy setIamPolicy",),
    "gcp:storage/bucket:Bucket": (
        f"storage.buckets: {_CRUD}",
        # Deleting a bucket deletes the objects first.
        "storage.objects: delete list",
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": (
        "storage.buckets: get getIamPolicy setIamPolicy",
    ),
    "gcp:storage/bucketObject:BucketObject": ("storage.objects: create delete get update",),
    "gcp:storage/transferJob:TransferJob": (
        "storagetransfer.jobs: create delete get update",
        "storagetransfer.projects: getServiceAccount",
    ),
}
BUILD_NEEDS: Final = (
    "artifactregistry.tags: get",
    "cloudbuild.builds: create get",
    "iam.serviceAccounts: actAs",
)
CHECK_NEEDS: Final = (
    "compute.acceleratorTypes: list",
    "compute.machineTypes: list",
    "compute.projects: get",
    "compute.regions: get",
    "orgpolicy.policy: get",
    "resourcemanager.projects: get",
    # `use` allows calls that count against the project's quotas.
    "serviceusage.services: get list use",
    "storagetransfer.operations: get",
)
DESTROY_NEEDS: Final = (
    "artifactregistry.repositories: get",
    "compute.disks: list",
    "compute.instances: delete list",
    "run.services: update",
)
VERIFY_NEEDS: Final = (
    "compute.instances: delete list simulateMaintenanceEvent",
    "monitoring.alertPolicies: list",
)
# Needed on subnetworks of another project, which this role does not cover: to use a subnetwork, and
# to grant the use to the cluster's tick.
USE_SUBNETWORK: Final = "compute.subnetworks.use"
HOST_PERMISSIONS: Final = (
    USE_SUBNETWORK,
    "compute.subnetworks.getIamPolicy",
    "compute.subnetworks.setIamPolicy",
)
# Needed by a restore besides the deployer's permissions. A deployer reads no rows of the state.
RESTORE_NEEDS: Final = (
    "datastore.backups: get list restoreDatabase",
    "datastore.databases: create delete get getMetadata import update",
    "datastore.entities: create delete get list update",
    "datastore.operations: get list",
    "eventarc.triggers: delete get",
    "run.services: get update",
    # Replacing a file needs the permission to delete.
    "storage.objects: create delete get list",
)
DELIVERY_NEEDS: Final = ("eventarc.triggers: get", "pubsub.subscriptions: get update")
ROLLBACK_NEEDS: Final = ("run.revisions: delete list", "run.services: get update")


def split_permissions(needs: Iterable[str]) -> Iterator[str]:
    """Yield each permission of texts like `SERVICE.COLLECTION: VERB VERB`."""
    for text in needs:
        collection, _, verbs = text.partition(": ")
        yield from (f"{collection}.{verb}" for verb in verbs.split())


def permissions_needed() -> frozenset[str]:
    """Return all permissions that deploy, check, rollback and destroy need in the project.

    Permissions on the billing account are left out.
    """
    texts = [text for kind, needs in NEEDS.items() for text in needs if "billing" not in kind]
    others = (*BUILD_NEEDS, *CHECK_NEEDS, *DELIVERY_NEEDS, *DESTROY_NEEDS, *ROLLBACK_NEEDS)
    return frozenset(split_permissions((*texts, *others, *VERIFY_NEEDS)))


def render_role() -> str:
    """Return the deployer's role as YAML for `gcloud iam roles create --file`."""
    role = {
        "title": "detcloud deployer",
        "description": "The least that a deployer of detcloud clusters needs",
        "stage": "GA",
        "includedPermissions": sorted(permissions_needed()),
    }
    return yaml.safe_dump(role, sort_keys=False)


def render_restore_role() -> str:
    """Return the role of a restore as YAML for `gcloud iam roles create --file`."""
    role = {
        "title": "detcloud restore",
        "description": "What a restore of a cluster's state needs besides the deployer's role",
        "stage": "GA",
        "includedPermissions": sorted(split_permissions(RESTORE_NEEDS)),
    }
    return yaml.safe_dump(role, sort_keys=False)


def render_key_binding(settings: Settings) -> str:
    """Return the IAM binding, as YAML, that a key needs before the stack can use the key.

    Comments in the text list commands that create the binding's members first.
    """
    binding = {"role": KEY_ROLE, "members": key_members(settings.names)}
    project = f"--project={settings.project}"
    return "\n".join(
        (
            "# Before the binding, run these commands, which create some of its members:",
            f"# gcloud beta services identity create --service=firestore.googleapis.com {project}",
            "# gcloud beta services identity create "
            f"--service=secretmanager.googleapis.com {project}",
            f"# gcloud storage service-agent {project}",
            yaml.safe_dump({"bindings": [binding]}, sort_keys=False),
        )
    )


def main() -> int:
    """Write the deployer's role to ROLE_FILE, and return 0. Raise OSError."""
    ROLE_FILE.write_text(render_role(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
