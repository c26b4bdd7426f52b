"""The stores: the state table and the buckets."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi_aws as aws

from infra.aws import policies
from infra.aws.scope import Scope

CONFIG_KEY = "config/cluster.yaml"
INDEX = "due"


def make_table(scope: Scope) -> Any:
    """Make the state table, as described in control_plane.aws.state_table.definition."""
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


def make_buckets(scope: Scope) -> Mapping[str, Any]:
    """Make the buckets of objects and of checkpoints, which only the cluster's roles can open."""
    names = scope.names
    return {
        "objects": _make_bucket(scope, "objects", names.objects),
        "checkpoints": _make_bucket(scope, "checkpoints", names.checkpoints),
    }


def put_configuration(scope: Scope, bucket: Any, text: str) -> None:
    """Put the cluster configuration where the functions find it."""
    aws.s3.BucketObjectv2(
        "cluster-configuration",
        bucket=bucket.id,
        key=CONFIG_KEY,
        content=text,
        content_type="application/yaml",
        opts=scope.options(),
    )


def _make_bucket(scope: Scope, name: str, bucket_name: str) -> Any:
    bucket = aws.s3.Bucket(
        name,
        bucket=bucket_name,
        force_destroy=not scope.settings.protect,
        tags=scope.tags(),
        opts=scope.options(),
    )
    access_block = aws.s3.BucketPublicAccessBlock(
        name,
        bucket=bucket.id,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
        opts=scope.options(),
    )
    aws.s3.BucketOwnershipControls(
        name,
        bucket=bucket.id,
        rule={"object_ownership": "BucketOwnerEnforced"},
        opts=scope.options(),
    )
    aws.s3.BucketServerSideEncryptionConfiguration(
        name,
        bucket=bucket.id,
        rules=[_encryption_rule(scope.settings.kms_key)],
        opts=scope.options(),
    )
    aws.s3.BucketLifecycleConfiguration(
        name,
        bucket=bucket.id,
        # Uploads in parts whose writer died take up room that no listing of objects shows.
        rules=[
            {
                "id": "unfinished-uploads",
                "status": "Enabled",
                "filter": {"prefix": ""},
                "abort_incomplete_multipart_upload": {"days_after_initiation": 1},
            }
        ],
        opts=scope.options(),
    )
    aws.s3.BucketPolicy(
        name,
        bucket=bucket.id,
        policy=json.dumps(policies.tls_only(bucket_name)),
        # S3 refuses two changes of who may do what at once.
        opts=scope.options([access_block]),
    )
    return bucket


def _encryption_rule(key: str) -> dict[str, Any]:
    if not key:
        return {"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}
    # With a key of the bucket, which lives for a while, KMS is not asked about each object.
    default = {"sse_algorithm": "aws:kms", "kms_master_key_id": key}
    return {"apply_server_side_encryption_by_default": default, "bucket_key_enabled": True}


def grant_key_to_spot_market(scope: Scope) -> None:
    """Grant EC2's spot market, which launches in its own name, the use of the settings' key."""
    if scope.settings.kms_key:
        aws.kms.Grant(
            "spot",
            name=scope.names.part("spot"),
            key_id=scope.settings.kms_key,
            grantee_principal=policies.service_role_arn(scope.names, "spot"),
            operations=policies.SPOT_GRANT,
            opts=scope.options(),
        )
