"""Permissions of trials beside their checkpoints, as the settings name buckets and registries."""

from control_plane.aws.trial_grants import PULL_ACTIONS
from detcloud.shared.registries import ecr_repository
from infra.aws.names import Names, bucket_arn
from infra.aws.policies import VERSION, Document, Statement, add_statements, make_statement
from infra.aws.trial_settings import DataBucket


def data_access(buckets: tuple[DataBucket, ...]) -> Document:
    """Return what the code of trials may do in the buckets."""
    statements: list[Statement] = []
    for number, it in enumerate(buckets):
        below = f"{it.folder}*"
        actions = ["s3:GetObject"]
        if it.writes:
            actions += ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:PutObject"]
        objects = [bucket_arn(f"{it.bucket}/{below}")]
        condition = {"StringLike": {"s3:prefix": [below]}} if it.folder else None
        bucket = [bucket_arn(it.bucket)]
        statements += [
            make_statement(f"Data{number}", actions, objects),
            make_statement(f"List{number}", ["s3:ListBucket"], bucket, condition),
            make_statement(f"Find{number}", ["s3:GetBucketLocation"], bucket),
        ]
    return {"Version": VERSION, "Statement": statements}


def data_key_use(names: Names, key: str) -> list[Statement]:
    """Return what that code needs for objects that the stack's key encrypts."""
    through = {"StringEquals": {"kms:ViaService": f"s3.{names.region}.amazonaws.com"}}
    return [make_statement("Key", ["kms:Decrypt", "kms:GenerateDataKey"], [key], through)]


def pulls(repositories: tuple[str, ...]) -> Document:
    """Return what pulling from the repositories needs."""
    found = [ecr_repository(name) for name in repositories]
    arns = [repository.arn for repository in found if repository is not None]
    return {
        "Version": VERSION,
        "Statement": [
            # A login is about no repository.
            make_statement("LogIn", ["ecr:GetAuthorizationToken"], ["*"]),
            make_statement("Pull", PULL_ACTIONS, arns),
        ],
    }


def with_sessions(document: Document, roles: list[str]) -> Document:
    """Return the API's permissions with those to assume the roles of trials."""
    if not roles:
        return document
    return add_statements(document, [make_statement("GrantTrials", ["sts:AssumeRole"], roles)])
