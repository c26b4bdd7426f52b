"""The stores: the state database and the buckets."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pulumi
from pulumi_gcp import firestore, storage

import control_plane.gcp
from infra.gcp.policies import SOURCES
from infra.gcp.scope import Scope
from lambdas.collector_headers import OBJECT as HEADERS_KEY

CONFIG_KEY: Final = "config/cluster.yaml"
INDEXES: Final = Path(control_plane.gcp.__path__[0]) / "firestore.indexes.json"
# The days for which sources of images are kept, so that people can inspect the sources.
SOURCE_DAYS: Final = 30
# The days for which daily backups are kept. Unlike the point-in-time recovery, backups outlive the
# database.
BACKUP_DAYS: Final = 7


def make_database(scope: Scope) -> Any:
    """Create and return the state database, with the indexes of queries and the expiry of rows.

    The database has point-in-time recovery, daily backups, encryption with `kms_key` if set, and
    the setting `protect` as deletion protection.
    """
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
    _schedule_backups(scope, database)
    return database


def _schedule_backups(scope: Scope, database: Any) -> None:
    """Schedule a backup of the database each day, kept for BACKUP_DAYS."""
    firestore.BackupSchedule(
        "daily",
        project=scope.settings.project,
        database=database.name,
        retention=f"{BACKUP_DAYS * 24 * 3600}s",
        daily_recurrence={},
        opts=scope.options(),
    )


def _make_indexes(
    scope: Scope, database: Any, indexes: list[Mapping[str, Any]]
) -> list[pulumi.Resource]:
    """Create and return the indexes, each after the previous index.

    `indexes` have the form of INDEXES.
    """
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
                # Firestore rejects concurrent changes of a database's indexes.
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
    """Create the settings of single fields: the field's indexes, and the expiry of rows.

    `overrides` are field overrides in the form of INDEXES. The settings are created one by one,
    after the last resource of `after`.
    """
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
    """Create and return the private buckets `objects` and `checkpoints`.

    The buckets prevent public access, and abort unfinished multipart uploads after a day. The
    bucket of checkpoints keeps deleted and replaced objects for `deleted_checkpoint_days`. Sources
    of images are deleted after SOURCE_DAYS. Without the setting `protect`, deleting the stack
    deletes all objects.
    """
    names, days = scope.names, scope.settings.deleted_checkpoint_days
    old_sources = {
        "action": {"type": "Delete"},
        "condition": {"age": SOURCE_DAYS, "matches_prefixes": [SOURCES]},
    }
    return {
        "objects": make_private_bucket(scope, "objects", names.objects, old_sources),
        "checkpoints": make_private_bucket(
            scope, "checkpoints", names.checkpoints, old_versions_rule(days), keeps=days > 0
        ),
    }


def put_configuration(scope: Scope, bucket: Any, text: str) -> None:
    """Store the cluster configuration's text as an object of the bucket, at CONFIG_KEY."""
    storage.BucketObject(
        "cluster-configuration",
        bucket=bucket.name,
        name=CONFIG_KEY,
        content=text,
        content_type="application/yaml",
        opts=scope.options(),
    )


def put_collector_headers(scope: Scope, bucket: Any) -> None:
    """Store the headers of the setting `telemetry` as an object of the bucket.

    Store nothing without headers.
    """
    collector = scope.settings.telemetry
    if collector is not None and collector.headers:
        storage.BucketObject(
            "collector-headers",
            bucket=bucket.name,
            name=HEADERS_KEY,
            content=pulumi.Output.secret(collector.headers),
            content_type="application/json",
            opts=scope.options(),
        )


def old_versions_rule(days: int) -> dict[str, Any]:
    """Return the rule that deletes versions that are not live for `days`, at least for a day.

    A bucket that no longer keeps versions still has the old ones, which would cost storage for ever
    without the rule.
    """
    return {
        "action": {"type": "Delete"},
        "condition": {"days_since_noncurrent_time": max(days, 1), "with_state": "ARCHIVED"},
    }


def make_private_bucket(
    scope: Scope,
    name: str,
    bucket_name: str,
    *rules: Mapping[str, Any],
    keeps: bool = False,
    region: str = "",
) -> Any:
    """Create and return a private bucket, with further lifecycle `rules`.

    With `keeps`, the bucket keeps deleted and replaced objects as versions. `region` is the region
    of the bucket, by default the region of the stack.
    """
    settings = scope.settings
    # Unfinished multipart uploads of dead processes cost storage without appearing in listings.
    unfinished = {
        "action": {"type": "AbortIncompleteMultipartUpload"},
        "condition": {"age": 1},
    }
    key = {"default_kms_key_name": settings.kms_key} if settings.kms_key else None
    return storage.Bucket(
        name,
        project=settings.project,
        name=bucket_name,
        location=(region or settings.region).upper(),
        storage_class="STANDARD",
        uniform_bucket_level_access=True,
        public_access_prevention="enforced",
        force_destroy=not settings.protect,
        # Nobody can delete a soft-deleted object before its time, so the collector's deletions
        # would cost storage. The collector can delete versions.
        soft_delete_policy={"retention_duration_seconds": 0},
        versioning={"enabled": keeps},
        lifecycle_rules=[unfinished, *rules],
        encryption=key,
        labels=scope.labels,
        opts=scope.options(),
    )
