"""Copies of the state and of the buckets in another region, which the setting `copies` asks for.

DynamoDB exports the whole state every few hours into a bucket of the other region; a schedule of
EventBridge starts the exports without a function. S3 replicates new objects within minutes.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pulumi_aws as aws

from infra.aws import policies
from infra.aws.copy_policies import exports, replication
from infra.aws.policy_statements import Document
from infra.aws.private_buckets import make_private_bucket, require_tls
from infra.aws.scope import Scope
from infra.copy_settings import STATE_DAYS, VERSION_DAYS, Copies

EXPORT: Final = "arn:aws:scheduler:::aws-sdk:dynamodb:exportTableToPointInTime"


def make_copies(
    scope: Scope, buckets: Mapping[str, Any], versionings: Mapping[str, Any], dead_letters: Any
) -> None:
    """Create the copies in another region. Create nothing without the setting `copies`.

    A refused start of an export goes to the queue `dead_letters`, which has an alarm. `versionings`
    has the versioning of each replicated bucket.
    """
    copies = scope.settings.copies
    if copies is None:
        return
    names = scope.names
    state = _make_bucket(scope, copies, "state-copy", names.state_copy, _expiry(STATE_DAYS))
    _schedule_exports(scope, copies, state, dead_letters)
    role = _make_role(scope, "copies", "s3.amazonaws.com", replication(names, copies))
    for name in copies.buckets:
        _replicate(scope, copies, name, buckets[name], versionings[name], role)


def _schedule_exports(scope: Scope, copies: Copies, bucket: Any, dead_letters: Any) -> None:
    """Create the schedule that exports the table into `bucket` every few hours."""
    names = scope.names
    role = _make_role(scope, "exports", "scheduler.amazonaws.com", exports(names))
    request = {
        "TableArn": names.table_arn,
        "S3Bucket": names.state_copy,
        "S3BucketOwner": names.account,
        "S3SseAlgorithm": "AES256",
        "ExportFormat": "DYNAMODB_JSON",
    }
    unit = "hour" if copies.hours == 1 else "hours"
    aws.scheduler.Schedule(
        "exports",
        name=names.part("exports"),
        schedule_expression=f"rate({copies.hours} {unit})",
        flexible_time_window={"mode": "OFF"},
        target={
            "arn": EXPORT,
            "role_arn": role.arn,
            "input": json.dumps(request),
            "dead_letter_config": {"arn": dead_letters.arn},
            "retry_policy": {"maximum_event_age_in_seconds": 3600, "maximum_retry_attempts": 3},
        },
        opts=scope.options([bucket]),
    )


def _replicate(
    scope: Scope, copies: Copies, name: str, bucket: Any, versioning: Any, role: Any
) -> None:
    """Replicate new objects, and the deletions of objects, of a bucket of the stack."""
    copy = _make_bucket(scope, copies, f"{name}-copy", scope.names.copy(name))
    versioned = [
        versioning,
        aws.s3.BucketVersioning(
            f"{name}-copy",
            bucket=copy.id,
            versioning_configuration={"status": "Enabled"},
            region=copies.region,
            opts=scope.options(),
        ),
    ]
    aws.s3.BucketReplicationConfig(
        name,
        bucket=bucket.id,
        role=role.arn,
        rules=[
            {
                "id": "copies",
                "status": "Enabled",
                "priority": 1,
                "filter": {"prefix": ""},
                "delete_marker_replication": {"status": "Enabled"},
                "destination": {"bucket": copy.arn},
            }
        ],
        # S3 refuses a replication between buckets without versions.
        opts=scope.options(versioned),
    )


def _make_bucket(
    scope: Scope, copies: Copies, name: str, bucket_name: str, *rules: Mapping[str, Any]
) -> Any:
    """Create and return a private bucket in the copies' region, with further lifecycle `rules`.

    The bucket blocks public access, requires TLS, and encrypts objects with S3's own key.
    """
    region = copies.region
    bucket, access_block = make_private_bucket(scope, name, bucket_name, region=region)
    aws.s3.BucketLifecycleConfiguration(
        name,
        bucket=bucket.id,
        rules=[_old_versions(), *rules],
        region=region,
        opts=scope.options(),
    )
    require_tls(scope, name, bucket, bucket_name, [access_block], region)
    return bucket


def _old_versions() -> dict[str, Any]:
    """Return the lifecycle rule that deletes old versions and unfinished uploads."""
    return {
        "id": "old-versions",
        "status": "Enabled",
        "filter": {"prefix": ""},
        "noncurrent_version_expiration": {"noncurrent_days": VERSION_DAYS},
        "expiration": {"expired_object_delete_marker": True},
        "abort_incomplete_multipart_upload": {"days_after_initiation": 1},
    }


def _expiry(days: int) -> dict[str, Any]:
    """Return the lifecycle rule that deletes objects after some days."""
    return {
        "id": "old-exports",
        "status": "Enabled",
        "filter": {"prefix": ""},
        "expiration": {"days": days},
    }


def _make_role(scope: Scope, name: str, service: str, document: Document) -> Any:
    """Create and return a role with the policy `document`, for an AWS service only."""
    role = aws.iam.Role(
        name,
        name=scope.names.role(name),
        path=scope.names.iam_path,
        permissions_boundary=scope.settings.permissions_boundary or None,
        assume_role_policy=json.dumps(policies.service_trust(service)),
        tags=scope.tags(),
        opts=scope.options(),
    )
    aws.iam.RolePolicy(
        name,
        name=scope.names.part(name),
        role=role.name,
        policy=json.dumps(document),
        opts=scope.options(),
    )
    return role
