"""The IAM policy with the permissions of `detcloud deploy restore aws`.

A deployer needs no access to the rows of the state; a restore does. So a restore has a policy of
its own, which people attach for the restore, besides the deployer's.
"""

import json
from typing import Final

from infra.aws.key_policies import key_use
from infra.aws.names import bucket_arn
from infra.aws.policy_statements import Document, make_document, make_statement
from infra.aws.settings import Settings

# The actions on the table and on the temporary table. DynamoDB writes a restored table with the
# permissions of the caller.
_TABLE: Final = (
    "dynamodb:BatchWriteItem",
    "dynamodb:ConditionCheckItem",
    "dynamodb:DeleteItem",
    "dynamodb:DeleteTable",
    "dynamodb:DescribeContinuousBackups",
    "dynamodb:DescribeTable",
    "dynamodb:GetItem",
    "dynamodb:ListTagsOfResource",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:RestoreTableFromBackup",
    "dynamodb:RestoreTableToPointInTime",
    "dynamodb:Scan",
    "dynamodb:TagResource",
    "dynamodb:UpdateContinuousBackups",
    "dynamodb:UpdateItem",
    "dynamodb:UpdateTable",
)
_BACKUP: Final = ("dynamodb:DescribeBackup", "dynamodb:RestoreTableFromBackup")
_FUNCTION: Final = ("lambda:DeleteFunctionConcurrency", "lambda:PutFunctionConcurrency")
_MAPPING: Final = ("lambda:UpdateEventSourceMapping",)
# Actions that accept no resource in a policy.
_ANYWHERE: Final = (
    "dynamodb:ListBackups",
    "dynamodb:ListTables",
    "lambda:ListEventSourceMappings",
)
_READ: Final = (
    "s3:GetObject",
    "s3:GetObjectTagging",
    "s3:GetObjectVersion",
    "s3:GetObjectVersionTagging",
    "s3:ListBucket",
    "s3:ListBucketVersions",
)
_WRITE: Final = ("s3:AbortMultipartUpload", "s3:PutObject", "s3:PutObjectTagging")


def restore_document(settings: Settings) -> Document:
    """Return the policy. The table cannot be deleted, only temporary tables."""
    names = settings.names
    table = names.table_arn
    temporary = f"{table}-restoring-*"
    own = f"{names.region}:{names.account}"
    copies = [bucket_arn(f"{names.cluster}-{part}") for part in ("*-copy", "*-copy/*")]
    return make_document(
        make_statement(
            "Table",
            [action for action in _TABLE if action != "dynamodb:DeleteTable"],
            [table, f"{table}/index/*"],
        ),
        make_statement("Temporary", list(_TABLE), [temporary, f"{temporary}/index/*"]),
        make_statement("Backups", list(_BACKUP), [f"{table}/backup/*"]),
        make_statement(
            "Functions",
            [*_FUNCTION, *_MAPPING],
            [
                f"arn:aws:lambda:{own}:function:{names.cluster}-*",
                f"arn:aws:lambda:{own}:event-source-mapping:*",
            ],
        ),
        make_statement("Look", list(_ANYWHERE), ["*"]),
        # A cluster in another region also needs this statement of the former cluster's policy.
        make_statement("Copies", list(_READ), copies),
        make_statement(
            "Objects",
            [*_READ, *_WRITE],
            [
                bucket_arn(f"{bucket}{below}")
                for bucket in (names.objects, names.checkpoints)
                for below in ("", "/*")
            ],
        ),
        *(key_use(names, settings.kms_key) if settings.kms_key else ()),
    )


def restore_policy(settings: Settings) -> str:
    """Return the policy as indented JSON with a final newline."""
    return json.dumps(restore_document(settings), indent=1) + "\n"
