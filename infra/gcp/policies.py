"""Permissions of the stack's service accounts: plain data from plain names.

A role is a set of permissions of the stack's own, and a grant gives one to an account at one place.
Google knows no condition on labels of instances, so what the tick may do with instances goes by
their names, which begin with the cluster's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from infra.gcp.names import STARTED_BY_TICK, Names

# What stands for `use_subnetworks` at a subnetwork of another project.
HOST_ROLE: Final = "roles/compute.networkUser"
# The roles of the stack, each with its permissions and no other.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "rows": (
        "datastore.entities.create",
        "datastore.entities.delete",
        "datastore.entities.get",
        "datastore.entities.list",
        "datastore.entities.update",
    ),
    "write_objects": ("storage.objects.create", "storage.objects.get", "storage.objects.list"),
    # Nothing is overwritten, for which Cloud Storage would ask for the right to delete.
    "add_objects": ("storage.objects.create", "storage.objects.get"),
    "delete_objects": ("storage.objects.delete", "storage.objects.get", "storage.objects.list"),
    "erase_objects": ("storage.objects.delete", "storage.objects.list"),
    "get_objects": ("storage.objects.get",),
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
# Of these, what only those stacks have whose settings let trials use more than their checkpoints.
TRIAL_ROLES: Final = ("read_data", "write_data", "pull_images")
PROJECT: Final = "project"
REPOSITORY: Final = "repository"
# What is below these in the bucket of objects is the agent's code, and sources of images.
AGENT_CODE: Final = "agent-code/"
CONFIGURATION: Final = "config/"
SOURCES: Final = "function-sources/"


@dataclass(frozen=True)
class Place:
    """A place that a role is given at: `kind` is project, repository, or what `name` is one of:
    bucket, account, service, subnetwork, by its region, or image_repository, by its location and
    name.
    """

    kind: str
    name: str = ""


OBJECTS: Final = Place("bucket", "objects")
CHECKPOINTS: Final = Place("bucket", "checkpoints")


@dataclass(frozen=True)
class Grant:
    """A role that an account is given at a place, where `condition` holds if it is not empty."""

    account: str
    role: str
    place: Place
    condition: str = ""

    @property
    def permissions(self) -> tuple[str, ...]:
        return ROLES[self.role]


def list_grants(names: Names, regions: tuple[str, ...], *, logs_instances: bool) -> list[Grant]:
    """Return all grants of a stack whose instances are in `regions`. With `logs_instances` agents
    write their journals to Cloud Logging.
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
    database = f"projects/{names.project}/databases/{names.database}"
    return Grant(account, "rows", Place(PROJECT), f'resource.name == "{database}"')


def _api() -> list[Grant]:
    """Return the API's grants: model code and logs, checkpoints, which users upload too, signing
    URLs of both as itself, and tokens of the account of trials' storage, which it narrows for each
    trial.
    """
    return [
        Grant("api", "write_objects", OBJECTS),
        Grant("api", "write_objects", CHECKPOINTS),
        Grant("api", "sign_urls", Place("account", "api")),
        Grant("api", "issue_tokens", Place("account", "storage")),
    ]


def _tick(names: Names, regions: tuple[str, ...]) -> list[Grant]:
    """Return the tick's grants: instances of this cluster with their account and subnetworks, the
    agents' code, and the functions that it starts.
    """
    return [
        *list_launch_grants("tick", names, regions),
        Grant("tick", "get_objects", OBJECTS, _folder_condition(names, CONFIGURATION)),
        Grant("tick", "add_objects", OBJECTS, _folder_condition(names, AGENT_CODE)),
        *(Grant("tick", "start_functions", Place("service", name)) for name in STARTED_BY_TICK),
    ]


def list_launch_grants(account: str, names: Names, regions: tuple[str, ...]) -> list[Grant]:
    """Return the grants of an account that launches: instances of this cluster, with their account
    and subnetworks.
    """
    return [
        Grant(account, "instances", Place(PROJECT), instance_condition(names)),
        Grant(account, "give_account", Place("account", "instance")),
        *(Grant(account, "use_subnetworks", Place("subnetwork", region)) for region in regions),
    ]


def instance_condition(names: Names) -> str:
    """Return the condition that instances and disks, where a permission is about one, are the
    cluster's by their names.
    """
    prefix = f"{names.instance_prefix}-"
    return " && ".join(
        f'(resource.type != "compute.googleapis.com/{kind}" || '
        f'resource.name.extract("/{folder}/{{name}}").startsWith("{prefix}"))'
        for kind, folder in (("Instance", "instances"), ("Disk", "disks"))
    )


def _checkpoint_gc() -> list[Grant]:
    """Return the grants of `checkpoint_gc`: deleting what is stored, and reading the manifests of
    checkpoints.
    """
    return [
        Grant("checkpoint_gc", "erase_objects", OBJECTS),
        Grant("checkpoint_gc", "delete_objects", CHECKPOINTS),
    ]


def _storage() -> list[Grant]:
    """Return all that a trial may be allowed: to read and write checkpoints, never to delete."""
    return [Grant("storage", "write_objects", CHECKPOINTS)]


def _instance(names: Names, *, logs_instances: bool) -> list[Grant]:
    """Return the grants of instances: fetching the agent's code. All else they ask of the API."""
    code = Grant("instance", "get_objects", OBJECTS, _folder_condition(names, AGENT_CODE))
    logs = [Grant("instance", "write_logs", Place(PROJECT))] if logs_instances else []
    return [code, *logs]


def _events() -> list[Grant]:
    """Return the grants of what calls `advance` and `tick`: triggers and the scheduler."""
    return [
        Grant("events", "receive_events", Place(PROJECT)),
        *(
            Grant("events", "start_functions", Place("service", name))
            for name in ("advance", "tick")
        ),
    ]


def _build(names: Names) -> list[Grant]:
    """Return the grants of the build of the functions' image."""
    return [
        Grant("build", "get_objects", OBJECTS, _folder_condition(names, SOURCES)),
        Grant("build", "push_images", Place(REPOSITORY)),
        Grant("build", "write_logs", Place(PROJECT)),
    ]


def key_members(names: Names) -> list[str]:
    """Return who encrypts with a key of one's own: the agents of the services, which do it in their
    own name.
    """
    agents = (
        "gcp-sa-firestore",
        "gs-project-accounts",
        "gcp-sa-artifactregistry",
        "serverless-robot-prod",
        "compute-system",
    )
    number = names.project_number
    return [f"serviceAccount:service-{number}@{agent}.iam.gserviceaccount.com" for agent in agents]


KEY_ROLE: Final = "roles/cloudkms.cryptoKeyEncrypterDecrypter"


def _folder_condition(names: Names, folder: str) -> str:
    """Return the condition that an object is in a folder of the bucket of objects."""
    objects = f"projects/_/buckets/{names.objects}/objects/{folder}"
    return f'resource.name.startsWith("{objects}")'
