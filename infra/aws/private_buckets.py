"""The protections that all buckets of a stack have."""

import json
from collections.abc import Sequence
from typing import Any

import pulumi_aws as aws

from infra.aws import policies
from infra.aws.scope import Scope


def make_private_bucket(
    scope: Scope, name: str, bucket_name: str, kms_key: str = "", region: str | None = None
) -> tuple[Any, Any]:
    """Create a bucket with encrypted objects and without public access or lists of rights.

    Return the bucket, and the block of public access, which must precede a policy of the bucket.

    Args:
        scope: the names and the settings of the stack.
        name: the name of the resources in Pulumi.
        bucket_name: the name of the bucket in AWS.
        kms_key: the ARN of the key that encrypts objects, or "" for S3's own key.
        region: the region of the bucket, or None for the region of the stack.
    """
    bucket = aws.s3.Bucket(
        name,
        bucket=bucket_name,
        force_destroy=not scope.settings.protect,
        region=region,
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
        region=region,
        opts=scope.options(),
    )
    aws.s3.BucketOwnershipControls(
        name,
        bucket=bucket.id,
        rule={"object_ownership": "BucketOwnerEnforced"},
        region=region,
        opts=scope.options(),
    )
    aws.s3.BucketServerSideEncryptionConfiguration(
        name,
        bucket=bucket.id,
        rules=[_encryption_rule(kms_key)],
        region=region,
        opts=scope.options(),
    )
    return bucket, access_block


def require_tls(
    scope: Scope,
    name: str,
    bucket: Any,
    bucket_name: str,
    after: Sequence[Any],
    region: str | None = None,
) -> None:
    """Create the policy of a bucket that denies requests without TLS.

    `after` has the resources to create before the policy: at least the block of public access,
    because S3 refuses a policy while the block is changing.
    """
    aws.s3.BucketPolicy(
        name,
        bucket=bucket.id,
        policy=json.dumps(policies.tls_only(bucket_name)),
        region=region,
        opts=scope.options([*after]),
    )


def _encryption_rule(key: str) -> dict[str, Any]:
    """Return a bucket's rule for encryption with the KMS key, or with S3's own key if ""."""
    if not key:
        return {"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}}
    # A bucket key, which S3 caches, saves a KMS call for each object.
    default = {"sse_algorithm": "aws:kms", "kms_master_key_id": key}
    return {"apply_server_side_encryption_by_default": default, "bucket_key_enabled": True}
