"""The stores: the database of the state and the buckets."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pulumi
from pulumi_gcp import firestore, storage

import control_plane.gcp
from infra.gcp.policies import SOURCES
from infra.gcp.scope import Scope

CONFIG_KEY: Final = "config/cluster.yaml"
INDEXES: Final = Path(control_plane.gcp.__path__[0]) / "firestore.indexes.json"
# Of sources that an image was built from, for a look at what was built.
SOURCE_DAYS: Final = 30


def make_database(scope: Scope) -> Any:
    """Make the database with the indexes that queries need, and the expiry of rows."""
    settings = scope.settings
    state = "ENABLED" if settings.protect else "DISABLED"
    key = {"cmek_config": {"kms_key_name": settings.kms_key}} if settings.kms_key else {}
    database = firestore.Database(
        "database",
        project=settings.project,
        name=scope.names.database,
        location_id=settings.region,
        type="FIRESTORE_NATIVE",
        database_edition="STANDARD",
        concurrency_mode="OPTIMISTIC",
        point_in_time_recovery_enablement="POINT_IN_TIME_RECOVERY_ENABLED",
        delete_protection_state=f"DELETE_PROTECTION_{state}",
        deletion_policy="DELETE",
        **key,
        opts=scope.options(),
    )
    indexes = json.loads(INDEXES.read_text(encoding="utf-8"))
    made = _make_indexes(scope, database, indexes["indexes"])
    _make_fields(scope, database, indexes["fieldOverrides"], made)
    return database


def _make_indexes(
    scope: Scope, database: Any, indexes: list[Mapping[str, Any]]
) -> list[pulumi.Resource]:
    made: list[pulumi.Resource] = []
    for index in indexes:
        fields = [(field["fieldPath"], field["order"]) for field in index["fields"]]
        made.append(
            firestore.Index(
                "-".join(f"{path}-{order.lower()}" for path, order in fields),
                project=scope.settings.project,
                database=database.name,
                collection=index["collectionGroup"],
                query_scope=index["queryScope"],
                fields=[{"field_path": path, "order": order} for path, order in fields],
                # Firestore changes one index of a database at a time.
                opts=scope.options(made[-1:]),
            )
        )
    return made


def _make_fields(
    scope: Scope,
    database: Any,
    overrides: list[Mapping[str, Any]],
    after: list[pulumi.Resource],
) -> None:
    """Make the settings of single fields: no index of their own, and which one rows expire by."""
    for override in overrides:
        indexes = [
            {"order": index["order"], "query_scope": index["queryScope"]}
            for index in override["indexes"]
        ]
        made = firestore.Field(
            f"{override['collectionGroup']}-{override['fieldPath']}",
            project=scope.settings.project,
            database=database.name,
            collection=override["collectionGroup"],
            field=override["fieldPath"],
            index_config={"indexes": indexes},
            ttl_config={} if override.get("ttl") else None,
            opts=scope.options(after[-1:]),
        )
        after = [made]


def make_buckets(scope: Scope) -> Mapping[str, Any]:
    """Make the buckets of objects and of checkpoints, which only the cluster's accounts can
    open.
    """
    names = scope.names
    # Sources of images are read once.
    old_sources = {
        "action": {"type": "Delete"},
        "condition": {"age": SOURCE_DAYS, "matches_prefixes": [SOURCES]},
    }
    return {
        "objects": _make_bucket(scope, "objects", names.objects, old_sources),
        "checkpoints": _make_bucket(scope, "checkpoints", names.checkpoints),
    }


def put_configuration(scope: Scope, bucket: Any, text: str) -> None:
    """Put the cluster configuration where the functions find it."""
    storage.BucketObject(
        "cluster-configuration",
        bucket=bucket.name,
        name=CONFIG_KEY,
        content=text,
        content_type="application/yaml",
        opts=scope.options(),
    )


def _make_bucket(scope: Scope, name: str, bucket_name: str, *rules: Mapping[str, Any]) -> Any:
    settings = scope.settings
    # Uploads in parts whose writer died take up room that no listing of objects shows.
    unfinished = {
        "action": {"type": "AbortIncompleteMultipartUpload"},
        "condition": {"age": 1},
    }
    key = {"default_kms_key_name": settings.kms_key} if settings.kms_key else None
    return storage.Bucket(
        name,
        project=settings.project,
        name=bucket_name,
        location=settings.region.upper(),
        storage_class="STANDARD",
        uniform_bucket_level_access=True,
        public_access_prevention="enforced",
        force_destroy=not settings.protect,
        # What is deleted is paid for no longer: checkpoints are large, and are deleted on purpose.
        soft_delete_policy={"retention_duration_seconds": 0},
        lifecycle_rules=[unfinished, *rules],
        encryption=key,
        labels=scope.labels,
        opts=scope.options(),
    )
