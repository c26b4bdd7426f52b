"""The stores: the state table and the buckets."""

from collections.abc import Mapping
from typing import Any, Final

import pulumi
import pulumi_aws as aws

from infra.aws.key_policies import SPOT_GRANT
from infra.aws.launch_policies import service_role_arn
from infra.aws.private_buckets import make_private_bucket, require_tls
from infra.aws.scope import Scope
from lambdas.collector_headers import OBJECT as HEADERS_KEY

CONFIG_KEY = "config/cluster.yaml"
INDEX = "due"


def make_table(scope: Scope) -> Any:
    """Create and return the state table, with the layout of control_plane.aws.state_table.

    The table has a stream of changed keys, point-in-time recovery, encryption with `kms_key` if
    set, and the setting `protect` as deletion protection.
    """
    types = {"p": "S", "s": "S", "h": "N", "d": "N"}
    return aws.dynamodb.Table(
        "table",
        name=scope.names.cluster,
        billing_mode="PAY_PER_REQUEST",
        hash_key="p",
        range_key="s",
        attributes=[{"name": name, "type": kind} for name, kind in types.items()],
        global_secondary_indexes=[
            {"name": INDEX, "hash_key": "h", "range_key": "d", "projection_type": "KEYS_ONLY"}
        ],
        stream_enabled=True,
        stream_view_type="KEYS_ONLY",
        server_side_encryption={
            "enabled": True,
            **({"kms_key_arn": scope.settings.kms_key} if scope.settings.kms_key else {}),
        },
        point_in_time_recovery={"enabled": True},
        deletion_protection_enabled=scope.settings.protect,
        tags=scope.tags(),
        opts=scope.options(),
    )


def make_buckets(scope: Scope, versionings: dict[str, Any]) -> Mapping[str, Any]:
    """Create and return the private buckets `objects` and `checkpoints`.

    The buckets block public access, require TLS, encrypt objects and abort unfinished multipart
    uploads after a day. The bucket of checkpoints keeps deleted and replaced objects for
    `deleted_checkpoint_days`. Without the setting `protect`, deleting the stack deletes the objects
    with all versions. Replicated buckets keep versions, too. Add the versioning of each bucket that
    keeps versions to `versionings`, by the bucket's name in the stack.
    """
    names, days = scope.names, scope.settings.deleted_checkpoint_days
    return {
        "objects": _make_bucket(scope, "objects", names.objects, versionings),
        "checkpoints": _make_bucket(scope, "checkpoints", names.checkpoints, versionings, days),
    }


def put_configuration(scope: Scope, bucket: Any, text: str) -> None:
    """Store the cluster configuration's text as an object of the bucket, at CONFIG_KEY."""
    aws.s3.BucketObjectv2(
        "cluster-configuration",
        bucket=bucket.id,
        key=CONFIG_KEY,
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
        aws.s3.BucketObjectv2(
            "collector-headers",
            bucket=bucket.id,
            key=HEADERS_KEY,
            content=pulumi.Output.secret(collector.headers),
            content_type="application/json",
            opts=scope.options(),
        )


def _make_bucket(
    scope: Scope,
    name: str,
    bucket_name: str,
    versionings: dict[str, Any],
    version_days: int = 0,
) -> Any:
    """Create and return a private bucket with all protections of `make_buckets`.

    With `version_days`, the bucket keeps deleted and replaced objects as versions for these days. A
    replicated bucket keeps versions for at least a day. Add a versioning to `versionings`.
    """
    key = scope.settings.kms_key
    bucket, access_block = make_private_bucket(scope, name, bucket_name, key)
    copies = scope.settings.copies
    if version_days or (copies is not None and name in copies.buckets):
        versionings[name] = aws.s3.BucketVersioning(
            name,
            bucket=bucket.id,
            versioning_configuration={"status": "Enabled"},
            opts=scope.options(),
        )
    lifecycle = aws.s3.BucketLifecycleConfiguration(
        name,
        bucket=bucket.id,
        rules=[_UNFINISHED_UPLOADS, _old_versions_rule(version_days)],
        opts=scope.options([versionings[name]] if name in versionings else []),
    )
    # Rules come before the policy, which denies requests without TLS, as emulators receive them.
    require_tls(scope, name, bucket, bucket_name, [access_block, lifecycle])
    return bucket


# Unfinished multipart uploads of dead processes cost storage without appearing in listings.
_UNFINISHED_UPLOADS: Final = {
    "id": "unfinished-uploads",
    "status": "Enabled",
    "filter": {"prefix": ""},
    "abort_incomplete_multipart_upload": {"days_after_initiation": 1},
}


def _old_versions_rule(days: int) -> dict[str, Any]:
    """Return the rule that deletes versions that are not current for `days`, at least for a day.

    The rule has no effect in a bucket that never kept versions. A bucket that no longer keeps
    versions still has the old ones, which would cost storage for ever without the rule. Delete
    markers without versions are deleted, too.
    """
    return {
        "id": "old-versions",
        "status": "Enabled",
        "filter": {"prefix": ""},
        "noncurrent_version_expiration": {"noncurrent_days": max(days, 1)},
        "expiration": {"expired_object_delete_marker": True},
    }


def grant_key_to_spot_market(scope: Scope) -> None:
    """Grant the service role of EC2's spot market the use of `kms_key`.

    The spot market launches with this role. Create nothing without the setting `kms_key`.
    """
    if scope.settings.kms_key:
        aws.kms.Grant(
            "spot",
            name=scope.names.part("spot"),
            key_id=scope.settings.kms_key,
            grantee_principal=service_role_arn(scope.names, "spot"),
            operations=SPOT_GRANT,
            opts=scope.options(),
        )
