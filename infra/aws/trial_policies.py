"""IAM policies for trials' access to the settings' data buckets and image repositories. Pure."""

from collections.abc import Sequence

from control_plane.aws.trial_grants import PULL_ACTIONS
from detcloud.shared.registries import ecr_repository
from infra.aws.names import Names, bucket_arn
from infra.aws.policy_statements import (
    Document,
    Statement,
    add_statements,
    make_document,
    make_statement,
)
from infra.data_buckets import DataBucket


def data_access(buckets: tuple[DataBucket, ...]) -> Document:
    """Return the policy for trials' code in the data buckets.

    The code may list and read, and in writable buckets also write and delete. The policy combines
    buckets in few statements, because IAM limits its length.
    """
    writes = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject"]
    statements = [
        *_object_statement("Read", ["s3:GetObject"], buckets),
        *_object_statement(
            "Write", writes, [data_bucket for data_bucket in buckets if data_bucket.writes]
        ),
        *_bucket_statement("Find", ["s3:GetBucketLocation"], buckets),
        *_bucket_statement(
            "List",
            ["s3:ListBucket"],
            [data_bucket for data_bucket in buckets if not data_bucket.folder],
        ),
    ]
    for number, data_bucket in enumerate(buckets):
        if data_bucket.folder:
            condition = {"StringLike": {"s3:prefix": [f"{data_bucket.folder}*"]}}
            bucket = [bucket_arn(data_bucket.bucket)]
            listing = make_statement(f"List{number}", ["s3:ListBucket"], bucket, condition)
            statements.append(listing)
    return make_document(*statements)


def _object_statement(
    sid: str, actions: Sequence[str], buckets: Sequence[DataBucket]
) -> list[Statement]:
    """Return a list of the statement about the objects of the buckets; [] without buckets."""
    arns = [bucket_arn(f"{bucket.bucket}/{bucket.folder}*") for bucket in buckets]
    return [make_statement(sid, actions, arns)] if arns else []


def _bucket_statement(
    sid: str, actions: Sequence[str], buckets: Sequence[DataBucket]
) -> list[Statement]:
    """Return a list of the statement about the buckets themselves; [] without buckets."""
    arns = [bucket_arn(name) for name in dict.fromkeys(bucket.bucket for bucket in buckets)]
    return [make_statement(sid, actions, arns)] if arns else []


def data_key_use(names: Names, key: str) -> list[Statement]:
    """Return a list of the statement that lets a role use S3 objects encrypted with the key.

    `key` is the ARN of the stack's key.
    """
    through = {"StringEquals": {"kms:ViaService": f"s3.{names.region}.amazonaws.com"}}
    return [make_statement("Key", ["kms:Decrypt", "kms:GenerateDataKey"], [key], through)]


def pulls(repositories: tuple[str, ...]) -> Document:
    """Return the policy for pulling images from ECR repositories.

    Names that are not ECR repositories are skipped.
    """
    found = [ecr_repository(name) for name in repositories]
    arns = [repository.arn for repository in found if repository is not None]
    return make_document(
        # GetAuthorizationToken accepts no resource in a policy.
        make_statement("LogIn", ["ecr:GetAuthorizationToken"], ["*"]),
        make_statement("Pull", PULL_ACTIONS, arns),
    )


def with_sessions(document: Document, roles: list[str]) -> Document:
    """Return the API's policy with a statement that lets the API assume trials' roles.

    `roles` are ARNs. Return `document` itself if `roles` is empty.
    """
    if not roles:
        return document
    return add_statements(document, [make_statement("GrantTrials", ["sts:AssumeRole"], roles)])
