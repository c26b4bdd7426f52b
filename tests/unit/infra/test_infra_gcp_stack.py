"""The resources that the program registers for a team's stack on Google Cloud."""

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.gcp.functions import describe_deployment
from infra.gcp.image import BuildFailed
from infra.gcp.names import OTHER_ACCOUNTS, STARTED_BY_TICK
from infra.gcp.program import make_stack, read_stack_config
from infra.gcp.storage import INDEXES
from infra.terraform.recorder import Resource, run_program
from lambdas.gcp.function_names import ACCOUNT_FUNCTIONS, ACCOUNT_OF, FUNCTIONS
from tests.emulators.gcp_stack_files import POOLS, gcp_files
from tests.unit.infra.gcp_graphs import (
    DIGEST,
    KEY,
    VISION,
    GcpGraph,
    environments,
    gcp_graph,
    kinds,
)
from tests.unit.infra.graphs import texts

# The labels' property by resource type. A service has labels in its template, too.
LABELLED = {
    "artifactregistry/repository": "labels",
    "cloudrunv2/service": "labels",
    "eventarc/trigger": "labels",
    "monitoring/alertPolicy": "userLabels",
    "monitoring/notificationChannel": "userLabels",
    "secretmanager/secret": "labels",
    "storage/bucket": "labels",
}
# Resource types that cost nothing in a month without work. Conditions of alarms and jobs of the
# scheduler are counted below, and the images are small.
FREE_WHILE_IDLE = {
    "artifactregistry/repository",
    "artifactregistry/repositoryIamMember",
    "billing/budget",
    "cloudrunv2/service",
    "cloudrunv2/serviceIamMember",
    "compute/firewall",
    "compute/network",
    "compute/subnetwork",
    "compute/subnetworkIAMMember",
    "eventarc/trigger",
    "firestore/backupSchedule",
    "firestore/database",
    "firestore/field",
    "firestore/index",
    "monitoring/alertPolicy",
    "monitoring/dashboard",
    "monitoring/notificationChannel",
    "projects/iAMCustomRole",
    "projects/iAMMember",
    # A billing account has six versions of secrets for free, and each further one costs 0.06 $.
    "secretmanager/secret",
    "secretmanager/secretIamMember",
    "secretmanager/secretVersion",
    "serviceaccount/account",
    "serviceaccount/iAMMember",
    "storage/bucket",
    "storage/bucketIAMMember",
    "storage/bucketObject",
}
RELAY_SECRET = {
    "secretKeyRef": {"secret": "detcloud-vision-relay", "version": "SecretVersion.relay.version"}
}
REPOSITORY = "us-central1-docker.pkg.dev/acme-ml/detcloud-vision"
SOURCE = hashlib.sha256(b"sources").hexdigest()
SUGGEST = hashlib.sha256(b"suggestions").hexdigest()


def test_database_belongs_to_the_team_and_is_protected(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph
) -> None:
    database = gcp_vision.inputs_of("firestore/database")["database"]
    assert (database["name"], database["locationId"]) == ("detcloud-vision", "us-central1")
    assert database["type"] == "FIRESTORE_NATIVE"
    assert database["pointInTimeRecoveryEnablement"] == "POINT_IN_TIME_RECOVERY_ENABLED"
    assert database["deleteProtectionState"] == "DELETE_PROTECTION_ENABLED"
    # Terraform's provider would keep the database otherwise.
    assert database["deletionPolicy"] == "DELETE"
    other = gcp_speech.inputs_of("firestore/database")["database"]
    assert other["deleteProtectionState"] == "DELETE_PROTECTION_DISABLED"


def test_indexes_match_the_committed_file(gcp_vision: GcpGraph) -> None:
    wanted = json.loads(INDEXES.read_text())
    made = gcp_vision.inputs_of("firestore/index").values()
    assert [(item["collection"], item["queryScope"], item["fields"]) for item in made] == [
        (
            index["collectionGroup"],
            index["queryScope"],
            [{"fieldPath": f["fieldPath"], "order": f["order"]} for f in index["fields"]],
        )
        for index in wanted["indexes"]
    ]
    fields = {item["field"]: item for item in gcp_vision.inputs_of("firestore/field").values()}
    assert set(fields) == {
        field_override["fieldPath"] for field_override in wanted["fieldOverrides"]
    }
    expiring = {name for name, field in fields.items() if "ttlConfig" in field}
    assert (
        expiring
        == {
            field_override["fieldPath"]
            for field_override in wanted["fieldOverrides"]
            if field_override.get("ttl")
        }
        == {"x"}
    )
    assert all(field["indexConfig"] == {"indexes": []} for field in fields.values())


def test_indexes_are_created_sequentially(gcp_vision: GcpGraph) -> None:
    names = [*gcp_vision.inputs_of("firestore/index"), *gcp_vision.inputs_of("firestore/field")]
    indexes = len(gcp_vision.inputs_of("firestore/index"))
    for number, (before, after) in enumerate(pairwise(names), start=1):
        kind = "firestore/index" if number < indexes else "firestore/field"
        assert gcp_vision.predecessors_of(kind, after) == {before}


def test_buckets_are_private_and_abort_incomplete_uploads(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph
) -> None:
    buckets = gcp_vision.inputs_of("storage/bucket")
    assert {item["name"] for item in buckets.values()} == {
        "detcloud-vision-objects-123456789012",
        "detcloud-vision-checkpoints-123456789012",
    }
    for bucket in buckets.values():
        assert bucket["uniformBucketLevelAccess"] is True
        assert bucket["publicAccessPrevention"] == "enforced"
        assert bucket["lifecycleRules"][0] == {
            "action": {"type": "AbortIncompleteMultipartUpload"},
            "condition": {"age": 1},
        }
        assert bucket["softDeletePolicy"] == {"retentionDurationSeconds": 0}
        assert bucket["forceDestroy"] is False
    # No rule deletes current checkpoint files by age.
    [old] = buckets["checkpoints"]["lifecycleRules"][1:]
    assert old == {
        "action": {"type": "Delete"},
        "condition": {"daysSinceNoncurrentTime": 7, "withState": "ARCHIVED"},
    }
    assert buckets["checkpoints"]["versioning"] == {"enabled": True}
    assert buckets["objects"]["versioning"] == {"enabled": False}
    [sources] = buckets["objects"]["lifecycleRules"][1:]
    assert sources["condition"]["matchesPrefixes"] == ["function-sources/"]
    for bucket in gcp_speech.inputs_of("storage/bucket").values():
        assert bucket["forceDestroy"] is True


def test_cluster_configuration_is_stored_as_an_object(gcp_vision: GcpGraph) -> None:
    kept = gcp_vision.inputs_of("storage/bucketObject")["cluster-configuration"]
    assert (kept["name"], kept["content"]) == ("config/cluster.yaml", POOLS)
    assert kept["bucket"] == "detcloud-vision-objects-123456789012"


def test_gcp_functions_have_exact_environments(gcp_vision: GcpGraph) -> None:
    common = {
        "DETCLOUD_CLUSTER": "detcloud-vision",
        "DETCLOUD_API_URL": "https://detcloud-vision-api-123456789012.us-central1.run.app",
        "DETCLOUD_PROJECT": "acme-ml",
        "DETCLOUD_REGION": "us-central1",
        "DETCLOUD_DATABASE": "detcloud-vision",
        "DETCLOUD_OBJECTS": "detcloud-vision-objects-123456789012",
        "DETCLOUD_CHECKPOINTS": "detcloud-vision-checkpoints-123456789012",
        "DETCLOUD_ADMIN_SHA256": "a" * 64,
        "DETCLOUD_CONFIG_SHA256": hashlib.sha256(POOLS.encode()).hexdigest(),
    }
    seconds = {"checkpoint_gc": "900", "suggest": "300"}
    own: dict[str, dict[str, Any]] = {
        name: {
            "DETCLOUD_FUNCTION": name,
            "DETCLOUD_TIMEOUT_SECONDS": seconds.get(name, "60"),
        }
        for name in FUNCTIONS
    }
    own["api"] |= {
        "DETCLOUD_INSTANCE_ACCOUNT": "Account.instance.email",
        "DETCLOUD_STORAGE_ACCOUNT": "Account.storage.email",
        "DETCLOUD_RELAY_URL": "https://detcloud-vision-relay-123456789012.us-central1.run.app",
        "DETCLOUD_RELAY_SECRET": RELAY_SECRET,
    }
    variables = environments(gcp_vision)
    # The relay gets neither the names of stores nor the address of the API.
    relay = {"DETCLOUD_FUNCTION": "relay", "DETCLOUD_RELAY_SECRET": RELAY_SECRET}
    assert variables.pop("relay") == relay
    assert json.loads(variables["tick"]["DETCLOUD_NETWORK"]) == {
        "network": "Network.network.id",
        "subnetworks": {
            "us-central1": "Subnetwork.us-central1.id",
            "europe-west4": "Subnetwork.europe-west4.id",
        },
        "tags": ["detcloud-vision"],
        "public_ip": True,
        "service_account": "Account.instance.email",
        "labels": {"detcloud-cluster": "detcloud-vision"},
        "name_prefix": "detcloud-vision--vm",
    }
    url = "https://detcloud-vision-{}-123456789012.us-central1.run.app"
    for name in ("tick", "wake"):
        own[name] |= {
            "DETCLOUD_GC_URL": url.format("checkpoint-gc"),
            "DETCLOUD_SUGGEST_URL": url.format("suggest"),
            "DETCLOUD_NETWORK": variables["tick"]["DETCLOUD_NETWORK"],
        }
    own["checkpoint_gc"] |= {"DETCLOUD_PURGE_VERSIONS": "1"}
    assert variables == {name: {**common, **own[name]} for name in FUNCTIONS}


def test_services_have_images_accounts_and_scale_to_zero(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph
) -> None:
    sizes, throttled = {}, set()
    for name, service in gcp_vision.inputs_of("cloudrunv2/service").items():
        template = service["template"]
        [container] = template["containers"]
        assert service["name"] == f"detcloud-vision-{name.replace('_', '-')}"
        assert template["serviceAccount"] == f"Account.{ACCOUNT_OF.get(name, name)}.email"
        kind, digest = ("suggest", SUGGEST) if name == "suggest" else ("functions", SOURCE)
        assert container["image"] == f"{REPOSITORY}/{kind}:{digest[:32]}"
        assert "commands" not in container
        assert template["scaling"]["minInstanceCount"] == 0
        assert service["scaling"] == {"minInstanceCount": 0}
        assert service["deletionProtection"] is False
        if container["resources"]["cpuIdle"]:
            throttled.add(name)
        sizes[name] = (
            template["timeout"],
            template["maxInstanceRequestConcurrency"],
            template["scaling"]["maxInstanceCount"],
        )
    assert sizes == {
        "api": ("60s", 40, 20),
        "advance": ("60s", 8, 20),
        # Events have instances of their own, and cannot use up those of the minute.
        "tick": ("60s", 4, 2),
        "wake": ("60s", 32, 2),
        # The second request learns that the first request is at work.
        "checkpoint_gc": ("900s", 2, 1),
        "suggest": ("300s", 2, 1),
        # An hour is Cloud Run's limit. Both ends of a tunnel must reach the same instance.
        "relay": ("3600s", 1000, 1),
    }
    # The tick waits only 5 s for the two other functions, which continue after the request.
    assert throttled == {"api", "advance", "tick", "wake", "relay"}
    api = gcp_speech.inputs_of("cloudrunv2/service")["api"]["template"]
    assert api["maxInstanceRequestConcurrency"] == 10
    assert api["scaling"]["maxInstanceCount"] == 5
    image = f"us-docker.pkg.dev/acme/mirror/functions@sha256:{DIGEST}"
    assert api["containers"][0]["image"] == image


def test_only_the_api_and_the_relay_are_public(gcp_vision: GcpGraph) -> None:
    services = gcp_vision.inputs_of("cloudrunv2/service")
    assert {name for name, service in services.items() if service["invokerIamDisabled"]} == {
        "api",
        "relay",
    }
    public = {
        name for name, service in services.items() if service["ingress"] == "INGRESS_TRAFFIC_ALL"
    }
    # The tick starts functions by calls over the internet, which IAM authorizes.
    assert public == {"api", "relay", *STARTED_BY_TICK}
    members = [
        item["member"] for item in gcp_vision.inputs_of("cloudrunv2/serviceIamMember").values()
    ]
    assert set(members) == {"Account.events.member", "Account.tick.member"}
    assert not any(
        "allUsers" in text for resource in gcp_vision.resources for text in texts(resource.inputs)
    )


def test_service_is_created_after_the_roles(gcp_vision: GcpGraph) -> None:
    before = gcp_vision.predecessors_of("cloudrunv2/service", "tick")
    assert {"tick-rows", "tick-instances", "tick-get_objects-objects"} <= before


def test_revisions_of_a_deployment_share_a_label(gcp_vision: GcpGraph) -> None:
    services = gcp_vision.inputs_of("cloudrunv2/service").values()
    [label] = {service["template"]["labels"]["detcloud-deployment"] for service in services}
    # Google's rule for labels.
    assert re.fullmatch("[0-9a-f]{12}", label)


def test_deployment_label_follows_the_content(tmp_path: Path) -> None:
    def label(pools: str = POOLS, **more: str) -> str:
        config = {**VISION, **gcp_files(tmp_path), **more}
        settings, _ = read_stack_config("vision", config)
        return describe_deployment(settings, pools)

    first = label()
    assert label() == first
    assert label(f"{POOLS}  - pool_name: other\n") != first
    assert label(**{"detcloud:apiInstances": "30"}) != first
    (tmp_path / "other.tar.gz").write_bytes(b"other sources")
    assert label(**{"detcloud:suggestArchive": str(tmp_path / "other.tar.gz")}) != first
    # The folder of a file does not change the label.
    (tmp_path / "moved.tar.gz").write_bytes(b"sources")
    assert label(**{"detcloud:archive": str(tmp_path / "moved.tar.gz")}) == first


def test_images_are_built_from_the_sources_in_the_bucket(
    gcp_vision: GcpGraph, gcp_speech: GcpGraph
) -> None:
    builds = {item.package: item for item in gcp_vision.builds}
    sources = gcp_vision.inputs_of("storage/bucketObject")
    for kind, digest in (("functions", SOURCE), ("suggest", SUGGEST)):
        source, build = sources[f"{kind}-sources"], builds[kind]
        assert build.source == source["name"] == f"function-sources/{digest}.tar.gz"
        assert isinstance(source["source"], pulumi.FileAsset)
        assert build.image == f"{REPOSITORY}/{kind}:{digest[:32]}"
    assert len(gcp_vision.builds) == 2
    # Prebuilt images are not built again.
    assert gcp_speech.builds == []
    assert set(gcp_speech.inputs_of("storage/bucketObject")) == {"cluster-configuration"}


def test_failed_image_build_creates_no_service(tmp_path: Path) -> None:
    def fail(build: object) -> None:
        raise BuildFailed("no")

    graph = GcpGraph()
    with pytest.raises(Exception, match="no"):
        run_program(lambda: make_stack(fail), "vision", {**VISION, **gcp_files(tmp_path)}, graph)
    assert graph.inputs_of("cloudrunv2/service") == {}


def test_image_tags_are_immutable_and_the_newest_are_kept(gcp_vision: GcpGraph) -> None:
    repository = gcp_vision.inputs_of("artifactregistry/repository")["images"]
    assert repository["dockerConfig"] == {"immutableTags": True}
    assert repository["repositoryId"] == "detcloud-vision"
    policies = {
        cleanup_policy["action"]: cleanup_policy for cleanup_policy in repository["cleanupPolicies"]
    }
    assert policies["KEEP"]["mostRecentVersions"] == {"keepCount": 10}


def test_created_documents_call_advance_and_wake(gcp_vision: GcpGraph) -> None:
    triggers = gcp_vision.inputs_of("eventarc/trigger")
    for name, rows, function in (("mail", "advance", "advance"), ("intents", "tick", "wake")):
        trigger = triggers[name]
        filters = {
            matching_criteria["attribute"]: matching_criteria
            for matching_criteria in trigger["matchingCriterias"]
        }
        assert filters["type"]["value"] == "google.cloud.firestore.document.v1.created"
        assert filters["database"]["value"] == "detcloud-vision"
        assert filters["document"]["value"] == f"triggers/{rows}/rows/{{row}}"
        assert filters["document"]["operator"] == "match-path-pattern"
        called = trigger["destination"]["cloudRunService"]
        assert called == {
            "service": f"detcloud-vision-{function}",
            "region": "us-central1",
            "path": "/",
        }
        assert trigger["serviceAccount"] == "Account.events.email"
        assert trigger["eventDataContentType"] == "application/protobuf"
        before = gcp_vision.predecessors_of("eventarc/trigger", name)
        assert f"events-start_functions-{function}" in before


def test_scheduler_calls_the_tick_each_minute_with_a_token(gcp_vision: GcpGraph) -> None:
    [job] = gcp_vision.inputs_of("cloudscheduler/job").values()
    assert (job["schedule"], job["timeZone"]) == ("* * * * *", "Etc/UTC")
    assert job["retryConfig"] == {"retryCount": 1, "minBackoffDuration": "5s"}
    assert job["httpTarget"] == {
        "httpMethod": "POST",
        "uri": "Service.tick.uri",
        "oidcToken": {
            "serviceAccountEmail": "Account.events.email",
            "audience": "Service.tick.uri",
        },
    }


def test_each_function_except_wake_has_a_separate_account(gcp_vision: GcpGraph) -> None:
    accounts = gcp_vision.inputs_of("serviceaccount/account")
    assert set(accounts) == {*ACCOUNT_FUNCTIONS, *OTHER_ACCOUNTS, "relay"}
    assert accounts["checkpoint_gc"]["accountId"] == "dc-vision-gc"
    assert len({account["accountId"] for account in accounts.values()}) == len(accounts)


def test_company_key_encrypts_all_stores_and_services(gcp_bank: GcpGraph) -> None:
    database = gcp_bank.inputs_of("firestore/database")["database"]
    assert database["cmekConfig"] == {"kmsKeyName": KEY}
    for bucket in gcp_bank.inputs_of("storage/bucket").values():
        assert bucket["encryption"] == {"defaultKmsKeyName": KEY}
    assert gcp_bank.inputs_of("artifactregistry/repository")["images"]["kmsKeyName"] == KEY
    for service in gcp_bank.inputs_of("cloudrunv2/service").values():
        assert service["template"]["encryptionKey"] == KEY
    network = json.loads(environments(gcp_bank)["tick"]["DETCLOUD_NETWORK"])
    assert network["kms_key"] == KEY


def test_labelled_resources_have_the_clusters_labels(gcp_bank: GcpGraph) -> None:
    wanted = {"cost-center": "42", "detcloud-cluster": "detcloud-bank"}
    for kind, name in LABELLED.items():
        for inputs in gcp_bank.inputs_of(kind).values():
            assert inputs[name] == wanted, kind
    for service in gcp_bank.inputs_of("cloudrunv2/service").values():
        assert wanted.items() <= service["template"]["labels"].items()
    network = json.loads(environments(gcp_bank)["tick"]["DETCLOUD_NETWORK"])
    assert network["labels"] == wanted


def test_idle_stack_costs_only_the_scheduler(gcp_vision: GcpGraph, gcp_bank: GcpGraph) -> None:
    assert kinds(gcp_vision) - FREE_WHILE_IDLE == {"cloudscheduler/job"}
    # Cloud NAT has a price per month and is therefore optional.
    nat = {"compute/router", "compute/routerNat"}
    assert kinds(gcp_bank) - FREE_WHILE_IDLE == {"cloudscheduler/job", *nat}


def test_two_teams_share_no_resource_name(gcp_vision: GcpGraph, gcp_speech: GcpGraph) -> None:
    def names_of(graph: GcpGraph) -> set[str]:
        keys = ("name", "accountId", "roleId", "repositoryId", "displayName")
        return {
            str(resource.inputs[key])
            for resource in graph.resources
            for key in keys
            # Grants and objects belong to resources with the team's name.
            if key in resource.inputs
            and "ember" not in resource.type
            and "bucketObject" not in resource.type
        }

    assert not names_of(gcp_vision) & names_of(gcp_speech)
    assert all("vision" in name for name in names_of(gcp_vision))


def test_each_resource_names_its_project(gcp_vision: GcpGraph) -> None:
    placed = {"bucketObject", "bucketIAMMember", "budget", "providers", "secretVersion"}
    for resource in gcp_vision.resources:
        place = resource.type.split(":")[1].partition("/")[2]
        if place not in placed and resource.type != "gcp:serviceaccount/iAMMember:IAMMember":
            assert resource.inputs.get("project", "acme-ml") == "acme-ml"
            assert "project" in resource.inputs or resource.type.startswith("pulumi:"), (
                resource.type
            )


def test_agents_may_write_logs_only_if_a_pool_uses_cloud_logging(tmp_path: Path) -> None:
    pools = (
        "resource_pools:\n  - pool_name: default\n    provider:\n"
        "      type: gcp\n      use_cloud_logging: true\n"
    )
    graph = gcp_graph("vision", VISION, tmp_path, pools)
    assert "instance-write_logs" in graph.inputs_of("projects/iAMMember")


def test_wrong_configuration_is_a_run_error(tmp_path: Path) -> None:
    config: Mapping[str, str] = {**VISION, **gcp_files(tmp_path), "detcloud:region": "here"}
    with pytest.raises(pulumi.RunError, match="detcloud:region is"):
        run_program(lambda: make_stack(lambda build: None), "vision", config, GcpGraph())


def test_failed_stack_leaves_no_pending_tasks(tmp_path: Path) -> None:
    """Python would warn of pending tasks in a later, unrelated test."""
    loops: list[asyncio.AbstractEventLoop] = []

    class RefusesServices(GcpGraph):
        def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
            if "cloudrun" in resource.type:
                raise ValueError("no services")
            return super().make(resource)

    def program() -> None:
        loops.append(asyncio.get_event_loop())
        make_stack(lambda build: None)

    with pytest.raises(ValueError, match="no services"):
        run_program(program, "vision", {**VISION, **gcp_files(tmp_path, POOLS)}, RefusesServices())
    assert asyncio.all_tasks(loops[0]) == set()
