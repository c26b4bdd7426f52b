"""The exact permissions of each service account of a stack on Google Cloud."""

import pytest

from infra.gcp.names import OTHER_ACCOUNTS, TRIAL_ACCOUNTS, Names
from infra.gcp.policies import ROLES, SETTING_ROLES, Grant, key_members, list_grants
from lambdas.gcp.function_names import ACCOUNT_FUNCTIONS, FUNCTIONS

NAMES = Names("vision", "acme-ml", "123456789012", "us-central1")
DATABASE = 'resource.name == "projects/acme-ml/databases/detcloud-vision"'
OBJECTS = "projects/_/buckets/detcloud-vision-objects-123456789012/objects"
Where = dict[tuple[str, str, str], set[str]]


def grants(*, logs_instances: bool = False) -> list[Grant]:
    return list_grants(NAMES, ("us-central1", "europe-west4"), logs_instances=logs_instances)


def may(account: str, *, logs_instances: bool = False) -> Where:
    """Return the permissions of an account by (kind of place, name of place, condition)."""
    permissions: Where = {}
    for grant in grants(logs_instances=logs_instances):
        if grant.account == account:
            key = (grant.place.kind, grant.place.name, grant.condition)
            permissions.setdefault(key, set()).update(grant.permissions)
    return permissions


ROWS_WHERE = ("project", "", DATABASE)
ROWS_ALL = {
    "datastore.databases.get",
    *(f"datastore.entities.{name}" for name in ("create", "delete", "get", "list", "update")),
}


def storage(*verbs: str) -> set[str]:
    return {f"storage.objects.{verb}" for verb in verbs}


def folder_condition(folder: str) -> str:
    return f'resource.name.startsWith("{OBJECTS}/{folder}")'


def test_api_may_create_checkpoints_but_not_delete_them() -> None:
    assert may("api") == {
        ROWS_WHERE: ROWS_ALL,
        ("bucket", "objects", ""): storage("create", "get", "list"),
        ("bucket", "checkpoints", ""): storage("create", "get", "list"),
        ("account", "api", ""): {"iam.serviceAccounts.signBlob"},
        ("account", "storage", ""): {"iam.serviceAccounts.getAccessToken"},
    }


def test_advance_and_suggest_may_only_use_rows() -> None:
    assert may("advance") == may("suggest") == {ROWS_WHERE: ROWS_ALL}


def test_tick_permissions_are_exact() -> None:
    permissions = may("tick")
    [condition] = [name for kind, _, name in permissions if kind == "project" and name != DATABASE]
    compute = permissions.pop(("project", "", condition))
    assert compute == {
        "compute.images.useReadOnly",
        *(f"compute.disks.{name}" for name in ("create", "setLabels")),
        *(
            f"compute.instances.{name}"
            for name in (
                "create",
                "delete",
                "getSerialPortOutput",
                "list",
                "setLabels",
                "setMetadata",
                "setServiceAccount",
                "setTags",
            )
        ),
        *(f"compute.{scope}Operations.list" for scope in ("global", "region", "zone")),
        *(f"compute.{scope}Operations.get" for scope in ("region", "zone")),
    }
    network = {"compute.subnetworks.use", "compute.subnetworks.useExternalIp"}
    reads = " || ".join(map(folder_condition, ("config/", "model-code/")))
    assert permissions == {
        ROWS_WHERE: ROWS_ALL,
        ("account", "instance", ""): {"iam.serviceAccounts.actAs"},
        ("subnetwork", "us-central1", ""): network,
        ("subnetwork", "europe-west4", ""): network,
        ("bucket", "objects", reads): storage("get"),
        ("bucket", "objects", folder_condition("agent-code/")): storage("create", "get"),
        ("service", "checkpoint_gc", ""): {"run.routes.invoke"},
        ("service", "suggest", ""): {"run.routes.invoke"},
    }


def test_tick_condition_compares_names_of_instances_and_disks() -> None:
    [condition] = [grant.condition for grant in grants() if grant.role == "instances"]
    instance, disk = condition.split(" && ")
    for kind, folder, text in (("Instance", "instances", instance), ("Disk", "disks", disk)):
        assert text == (
            f'(resource.type != "compute.googleapis.com/{kind}" || '
            f'resource.name.extract("/{folder}/{{name}}").startsWith("detcloud-vision--vm-"))'
        )


def test_instance_prefixes_of_teams_are_distinct() -> None:
    own = f"{NAMES.instance_prefix}-"
    for team in ("vision-x", "vision-vm", "vis", "v"):
        other = Names(team, "acme-ml", "123456789012", "us-central1").instance_prefix
        assert not f"{other}-1234-0".startswith(own)


def test_checkpoint_gc_may_delete_but_not_create_checkpoints() -> None:
    assert may("checkpoint_gc") == {
        ROWS_WHERE: ROWS_ALL,
        ("bucket", "objects", ""): storage("delete", "get", "list"),
        ("bucket", "checkpoints", ""): storage("delete", "get", "list"),
    }


def test_trials_may_not_delete_checkpoints() -> None:
    assert may("storage") == {("bucket", "checkpoints", ""): storage("create", "get", "list")}


def test_instance_may_only_read_the_agents_code() -> None:
    code = {("bucket", "objects", folder_condition("agent-code/")): storage("get")}
    assert may("instance") == code
    logged = {("project", "", ""): {"logging.logEntries.create"}}
    assert may("instance", logs_instances=True) == {**code, **logged}


def test_event_account_may_call_advance_tick_and_wake() -> None:
    assert may("events") == {
        ("project", "", ""): {"eventarc.events.receiveEvent"},
        ("service", "advance", ""): {"run.routes.invoke"},
        ("service", "tick", ""): {"run.routes.invoke"},
        ("service", "wake", ""): {"run.routes.invoke"},
    }


def test_build_account_may_read_sources_and_push_images() -> None:
    assert may("build") == {
        ("project", "", ""): {"logging.logEntries.create"},
        ("bucket", "objects", folder_condition("function-sources/")): storage("get"),
        ("repository", "", ""): {
            "artifactregistry.repositories.downloadArtifacts",
            "artifactregistry.repositories.get",
            "artifactregistry.repositories.uploadArtifacts",
            "artifactregistry.tags.create",
            "artifactregistry.tags.get",
            "artifactregistry.tags.list",
            "artifactregistry.tags.update",
        },
    }


def test_all_accounts_and_roles_are_granted() -> None:
    all_grants = grants(logs_instances=True)
    assert {grant.account for grant in all_grants} == {*ACCOUNT_FUNCTIONS, *OTHER_ACCOUNTS}
    assert {grant.role for grant in all_grants} == set(ROLES) - set(SETTING_ROLES)


@pytest.mark.parametrize("team", ["a" * 20, "a-1"])
def test_names_fit_googles_limits(team: str) -> None:
    names = Names(team, "p" * 30, "1" * 12, "northamerica-northeast1")
    for account in (*ACCOUNT_FUNCTIONS, *OTHER_ACCOUNTS, *TRIAL_ACCOUNTS):
        assert 6 <= len(names.account_id(account)) <= 30
    assert max(len(names.objects), len(names.checkpoints)) <= 63
    assert len(names.database) <= 63
    for function in FUNCTIONS:
        # The first part of an address is a name in the DNS.
        assert len(names.url(function).removeprefix("https://").partition(".")[0]) <= 63
    for role in ROLES:
        assert len(names.role_id(role)) <= 64
    # Two digests and a number of at most four digits follow the prefix of an instance's name.
    assert len(f"{names.instance_prefix}-{'0' * 12}-{'0' * 6}-9999") <= 63


def test_key_members_are_the_service_agents() -> None:
    services = ["gcp-sa-firestore", "gs-project-accounts", "gcp-sa-artifactregistry"]
    services += ["gcp-sa-secretmanager", "serverless-robot-prod", "compute-system"]
    assert key_members(NAMES) == [
        f"serviceAccount:service-123456789012@{service}.iam.gserviceaccount.com"
        for service in services
    ]
