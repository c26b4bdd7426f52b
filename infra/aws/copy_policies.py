"""Permissions of the services that copy a stack into another region, as plain data. Pure."""

from infra.aws.names import Names, bucket_arn
from infra.aws.policy_statements import Document, make_document, make_statement
from infra.copy_settings import Copies


def replication(names: Names, copies: Copies) -> Document:
    """Return the permissions of S3's replication: read both buckets' objects, write the copies."""
    pairs = {name: names.copy(name) for name in copies.buckets}
    own = [bucket_arn(getattr(names, name)) for name in pairs]
    return make_document(
        make_statement("Buckets", ["s3:GetReplicationConfiguration", "s3:ListBucket"], own),
        make_statement(
            "Read",
            [
                "s3:GetObjectVersionAcl",
                "s3:GetObjectVersionForReplication",
                "s3:GetObjectVersionTagging",
            ],
            [f"{arn}/*" for arn in own],
        ),
        make_statement(
            "Write",
            ["s3:ReplicateDelete", "s3:ReplicateObject", "s3:ReplicateTags"],
            [bucket_arn(f"{copy}/*") for copy in pairs.values()],
        ),
    )


def exports(names: Names) -> Document:
    """Return the permissions of the schedule: export the table, and report refused starts."""
    return make_document(
        make_statement("Export", ["dynamodb:ExportTableToPointInTime"], [names.table_arn]),
        make_statement(
            "Write",
            ["s3:AbortMultipartUpload", "s3:PutObject"],
            [bucket_arn(f"{names.state_copy}/*")],
        ),
        make_statement("Refused", ["sqs:SendMessage"], [names.dead_letters_arn]),
    )
