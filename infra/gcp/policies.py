"""The custom roles of the stack, and the grants of roles to service accounts. Pure.

A role is a set of permissions. A grant gives an account a role on a resource. Google supports no
conditions on labels of instances, so the tick's permissions depend on the names of instances, which
begin with the cluster's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from infra.gcp.names import RELAY, STARTED_BY_TICK, Names

# The role that replaces `use_subnetworks` on subnetworks of another project.
HOST_ROLE: Final = "roles/compute.networkUser"
# The permissions of each custom role.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "rows": (
        # Begins and ends transactions, for databases that refuse checks as writes without effect.
        "datastore.databases.get",
        "datastore.entities.create",
        "datastore.entities.delete",
        "datastore.entities.get",
        "datastore.entities.list",
        "datastore.entities.update",
    ),
    "write_objects": ("storage.objects.create", "storage.objects.get", "storage.objects.list"),
    # Overwriting an object would require the permission to delete.
    "add_objects": ("storage.objects.create", "storage.objects.get"),
    "delete_objects": ("storage.objects.delete", "storage.objects.get", "storage.objects.list"),
    "get_objects": ("storage.objects.get",),
    "export_rows": ("datastore.databases.export",),
    "write_exports": (
        "storage.buckets.get",
        "storage.objects.create",
        "storage.objects.delete",
        "storage.objects.get",
        "storage.objects.list",
    ),
    "sign_urls": ("iam.serviceAccounts.signBlob",),
    "issue_tokens": ("iam.serviceAccounts.getAccessToken",),
    "give_account": ("iam.serviceAccounts.actAs",),
    "start_functions": ("run.routes.invoke",),
    "use_subnetworks": ("compute.subnetworks.use", "compute.subnetworks.useExternalIp"),
    "instances": (
        "compute.disks.create",
        "compute.disks.setLabels",
        "compute.globalOperations.list",
        "compute.images.useReadOnly",
        "compute.instances.create",
        "compute.instances.delete",
        "compute.instances.getSerialPortOutput",
        "compute.instances.list",
        "compute.instances.setLabels",
        "compute.instances.setMetadata",
        "compute.instances.setServiceAccount",
        "compute.instances.setTags",
        "compute.regionOperations.get",
        "compute.regionOperations.list",
        "compute.zoneOperations.get",
        "compute.zoneOperations.list",
    ),
    "read_data": ("storage.objects.get", "storage.objects.list"),
    "write_data": (
        "storage.objects.create",
        "storage.objects.delete",
        "storage.objects.get",
        "storage.objects.list",
    ),
    "pull_images": ("artifactregistry.repositories.downloadArtifacts",),
    "read_secret": ("secretmanager.versions.access",),
    "receive_events": ("eventarc.events.receiveEvent",),
    "write_logs": ("logging.logEntries.create",),
    "push_images": (
        "artifactregistry.repositories.downloadArtifacts",
        "artifactregistry.repositories.get",
        "artifactregistry.repositories.uploadArtifacts",
        "artifactregistry.tags.create",
        "artifactregistry.tags.get",
        "artifactregistry.tags.list",
        "artifactregistry.tags.update",
    ),
}
# Roles that are created only with certain settings, for example for data buckets or copies.
SETTING_ROLES: Final = (
    *("read_data", "write_data", "pull_images", "export_rows", "write_exports"),
    "read_secret",
)
# The name of the bucket of exports within the stack.
STATE_COPY: Final = "state-copy"
PROJECT: Final = "project"
REPOSITORY: Final = "repository"
# The folders in the bucket of objects.
AGENT_CODE: Final = "agent-code/"
CONFIGURATION: Final = "config/"
MODEL_CODE: Final = "model-code/"
SOURCES: Final = "function-sources/"


@dataclass(frozen=True)
class Place:
    """A resource on which a role is granted."""

    kind: str
    """The resource's type: project, repository, bucket, account, service, subnetwork, secret or
    image_repository.
    """
    name: str = ""
    """The resource's name within the stack; the region of a subnetwork.

    An image_repository is LOCATION/NAME. The name is empty for project and repository.
    """


OBJECTS: Final = Place("bucket", "objects")
CHECKPOINTS: Final = Place("bucket", "checkpoints")


@dataclass(frozen=True)
class Grant:
    """The grant of a role to a service account on a resource."""

    account: str
    """The name of the service account, like `tick`."""
    role: str
    """A key of ROLES."""
    place: Place
    """The resource on which the role is granted."""
    condition: str = ""
    """An IAM condition that must hold; empty for none."""

    @property
    def permissions(self) -> tuple[str, ...]:
        """The permissions of the role."""
        return ROLES[self.role]


def list_grants(names: Names, regions: tuple[str, ...], *, logs_instances: bool) -> list[Grant]:
    """Return all grants of a stack, except grants for trials' data and images.

    `regions` are the regions with subnetworks for instances. With `logs_instances`, instances may
    write to Cloud Logging.
    """
    return [
        *(_rows(names, name) for name in ("api", "advance", "tick", "checkpoint_gc", "suggest")),
        *_api(),
        *_tick(names, regions),
        *_checkpoint_gc(),
        *_storage(),
        *_instance(names, logs_instances=logs_instances),
        *_events(),
        *_build(names),
    ]


def _rows(names: Names, account: str) -> Grant:
    """Return the grant to read and write rows of the cluster's database, and of no other."""
    database = f"projects/{names.project}/databases/{names.database}"
    return Grant(account, "rows", Place(PROJECT), f'resource.name == "{database}"')


def _api() -> list[Grant]:
    """Return the API's grants, without the grant on the database.

    The API may read and add model code, logs and checkpoints, sign URLs as itself, and issue tokens
    of the account of trials' storage. The API restricts each token to one trial.
    """
    return [
        Grant("api", "write_objects", OBJECTS),
        Grant("api", "write_objects", CHECKPOINTS),
        Grant("api", "sign_urls", Place("account", "api")),
        Grant("api", "issue_tokens", Place("account", "storage")),
    ]


def _tick(names: Names, regions: tuple[str, ...]) -> list[Grant]:
    """Return the tick's grants, without the grant on the database.

    The tick may launch and delete the cluster's instances, read the configuration and model code,
    store agents' code and call the functions of STARTED_BY_TICK.
    """
    return [
        *list_launch_grants("tick", names, regions),
        Grant("tick", "get_objects", OBJECTS, _folder_condition(names, CONFIGURATION, MODEL_CODE)),
        Grant("tick", "add_objects", OBJECTS, _folder_condition(names, AGENT_CODE)),
        *(Grant("tick", "start_functions", Place("service", name)) for name in STARTED_BY_TICK),
    ]


def list_launch_grants(account: str, names: Names, regions: tuple[str, ...]) -> list[Grant]:
    """Return the grants for launching and deleting the cluster's instances to `account`.

    Instances run as the account `instance`, in the subnetworks of the regions.
    """
    return [
        Grant(account, "instances", Place(PROJECT), instance_condition(names)),
        Grant(account, "give_account", Place("account", "instance")),
        *(Grant(account, "use_subnetworks", Place("subnetwork", region)) for region in regions),
    ]


def instance_condition(names: Names) -> str:
    """Return the IAM condition that instances and disks have names of the cluster.

    The condition holds for all other types of resources.
    """
    prefix = f"{names.instance_prefix}-"
    return " && ".join(
        f'(resource.type != "compute.googleapis.com/{kind}" || '
        f'resource.name.extract("/{folder}/{{name}}").startsWith("{prefix}"))'
        for kind, folder in (("Instance", "instances"), ("Disk", "disks"))
    )


def list_copy_grants(names: Names) -> list[Grant]:
    """Return the grants with which the tick exports the database into the copy of the state.

    Google requires that the caller of an export may write to the bucket. Firestore writes as its
    own agent, which may write to all buckets of the project.
    """
    database = f"projects/{names.project}/databases/{names.database}"
    return [
        Grant("tick", "export_rows", Place(PROJECT), f'resource.name == "{database}"'),
        Grant("tick", "write_exports", Place("bucket", STATE_COPY)),
    ]


def list_relay_grants() -> list[Grant]:
    """Return the grants of a stack with a relay: relay and API read the relay's secret.

    The relay may do nothing else.
    """
    secret = Place("secret", RELAY)
    return [Grant(account, "read_secret", secret) for account in (RELAY, "api")]


def _checkpoint_gc() -> list[Grant]:
    """Return the grants of `checkpoint_gc`: list, read and delete in both buckets.

    The grant on the database is not included.
    """
    return [
        Grant("checkpoint_gc", "delete_objects", OBJECTS),
        Grant("checkpoint_gc", "delete_objects", CHECKPOINTS),
    ]


def _storage() -> list[Grant]:
    """Return the upper bound of a trial's permissions.

    The bound allows to list, read and write checkpoints, but never to delete or overwrite.
    """
    return [Grant("storage", "write_objects", CHECKPOINTS)]


def _instance(names: Names, *, logs_instances: bool) -> list[Grant]:
    """Return the grants of instances: fetch the agent's code, and write logs if `logs_instances`.

    Agents use the API for everything else.
    """
    code = Grant("instance", "get_objects", OBJECTS, _folder_condition(names, AGENT_CODE))
    logs = [Grant("instance", "write_logs", Place(PROJECT))] if logs_instances else []
    return [code, *logs]


def _events() -> list[Grant]:
    """Return the grants of the account by which triggers and the scheduler call functions."""
    return [
        Grant("events", "receive_events", Place(PROJECT)),
        *(
            Grant("events", "start_functions", Place("service", name))
            for name in ("advance", "tick", "wake")
        ),
    ]


def _build(names: Names) -> list[Grant]:
    """Return the grants of the builds of the functions' images.

    A build may read sources, push images to the repository and write logs.
    """
    return [
        Grant("build", "get_objects", OBJECTS, _folder_condition(names, SOURCES)),
        Grant("build", "push_images", Place(REPOSITORY)),
        Grant("build", "write_logs", Place(PROJECT)),
    ]


def key_members(names: Names) -> list[str]:
    """Return the service agents that encrypt with the key of the setting `kmsKey`.

    Google's services use the key as these agents, not as their callers.
    """
    agents = (
        "gcp-sa-firestore",
        "gs-project-accounts",
        "gcp-sa-artifactregistry",
        "gcp-sa-secretmanager",
        "serverless-robot-prod",
        "compute-system",
    )
    number = names.project_number
    return [f"serviceAccount:service-{number}@{agent}.iam.gserviceaccount.com" for agent in agents]


KEY_ROLE: Final = "roles/cloudkms.cryptoKeyEncrypterDecrypter"


def _folder_condition(names: Names, *folders: str) -> str:
    """Return the IAM condition that an object of the bucket of objects is in any of `folders`."""
    objects = f"projects/_/buckets/{names.objects}/objects/"
    return " || ".join(f'resource.name.startsWith("{objects}{folder}")' for folder in folders)
